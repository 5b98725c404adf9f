"""torchrun's Python API, for programs written for it.

It has the modules that such a program imports from `torch.distributed`: `plaunch_torchrun.run`,
`.launch`, `.launcher` and `.argparse_util`, and a module for each package below `.elastic`, such as
`plaunch_torchrun.elastic.multiprocessing`. docs/compatibility.md lists all names. An unchanged
program is run by `python -m plaunch_torchrun`, or calls `install`: see docs/callers.md.
"""

from __future__ import annotations

from plaunch.lazy import TYPE_CHECKING, attach

if TYPE_CHECKING:
    from plaunch_torchrun.import_hook import install as install

__getattr__, __dir__, __all__ = attach(__name__, {".import_hook": "install"})
