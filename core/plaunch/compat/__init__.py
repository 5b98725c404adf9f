"""For code that was written for torchrun: what only such code needs.

`install` and `python -m plaunch.compat` are for programs that call torchrun: see docs/callers.md.
`plaunch.compat.torchrun` stands for `torch.distributed.run` and `torch.distributed.launcher`;
`python -m plaunch.compat.launch` for `python -m torch.distributed.launch`; `plaunch.compat.names`
says where each public name of torchrun's is. docs/compatibility.md has the table.

Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch.compat.registry import RendezvousHandlerRegistry as RendezvousHandlerRegistry
    from plaunch.compat.registry import get_rendezvous_handler as get_rendezvous_handler
    from plaunch.compat.registry import rendezvous_handler_registry as rendezvous_handler_registry
    from plaunch.compat.standin import install as install

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".registry": "RendezvousHandlerRegistry get_rendezvous_handler rendezvous_handler_registry",
        ".standin": "install",
    },
)
