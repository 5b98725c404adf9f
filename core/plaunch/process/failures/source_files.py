"""Which files of a traceback are the user's, and not Python's, an installed package's or torch's.

Workers may run another interpreter than the launcher, so files are judged by their paths alone.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\](torch[/\\])?")
_STANDARD_LIBRARY = re.compile(r"[/\\]lib(?:64)?[/\\](?:python|pypy)\d(?:\.\d+)?t?[/\\](\w+)[/\\.]")
_NO_FILE = re.compile(r"<frozen |.*[/\\]python\d+\.zip[/\\]")
_GRAPH = "<eval_with_key>"  # code that torch.fx has made
# Files that show that a folder `torch` has torch's sources, where torch is not installed.
_ONLY_TORCH = re.compile(
    r"(.*[/\\]torch[/\\])(?:_ops|_tensor|_jit_internal|_dynamo[/\\]\w+|_inductor[/\\]\w+"
    r"|autograd[/\\](?:function|graph)|distributed[/\\](?:distributed_c10d|c10d_logger|rendezvous)"
    r"|nn[/\\]modules[/\\]module|nn[/\\]parallel[/\\]distributed|utils[/\\]_contextlib"
    r"|utils[/\\]data[/\\](?:dataloader|_utils[/\\]\w+))\.py"
)


class SourceFiles:
    """The files of one traceback.

    Args:
        paths: the paths of the files. torch's sources are recognized by some of them.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        found = map(_ONLY_TORCH.fullmatch, set(paths))
        self._torch = tuple({match[1] for match in found if match})

    def is_torch(self, path: str) -> bool:
        """Whether a file belongs to torch."""
        package = _PACKAGES.search(path)
        is_installed = package is not None and package[1] is not None
        return is_installed or path.startswith((_GRAPH, *self._torch))

    def is_own(self, path: str) -> bool:
        """Whether a file belongs to the user, and not to Python, a package or torch."""
        standard = _STANDARD_LIBRARY.search(path)
        return not (
            (standard and standard[1] in sys.stdlib_module_names)
            or _PACKAGES.search(path)
            or _NO_FILE.match(path)
            or self.is_torch(path)
        )
