"""For code that was written for torchrun: what only such code needs.

`install` and `python -m plaunch_torchrun` are for programs that call torchrun: see docs/callers.md.
`plaunch_torchrun.run` stands for `torch.distributed.run` and `torch.distributed.launcher`;
`python -m plaunch_torchrun.launch` for `python -m torch.distributed.launch`; `torchrun_names`
says where each public name of torchrun's is. docs/compatibility.md has the table.

Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch._lazy import attach

if TYPE_CHECKING:
    from plaunch_torchrun.registry import RendezvousHandlerRegistry as RendezvousHandlerRegistry
    from plaunch_torchrun.registry import get_rendezvous_handler as get_rendezvous_handler
    from plaunch_torchrun.registry import rendezvous_handler_registry as rendezvous_handler_registry
    from plaunch_torchrun.standin import install as install

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".registry": "RendezvousHandlerRegistry get_rendezvous_handler rendezvous_handler_registry",
        ".standin": "install",
    },
)
