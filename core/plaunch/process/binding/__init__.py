"""Binding workers to processors near their devices (NUMA), as `torch.numa.binding` means it.

No numactl and no torch: the kernel is read, and told. Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch.process.binding.binder import Binder as Binder
    from plaunch.process.binding.binder import RankBinding as RankBinding
    from plaunch.process.binding.binder import describe_bindings as describe_bindings
    from plaunch.process.binding.options import AffinityMode as AffinityMode
    from plaunch.process.binding.options import NumaOptions as NumaOptions

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".binder": "Binder RankBinding describe_bindings",
        ".options": "AffinityMode NumaOptions",
    },
)
