"""Binding workers to processors near their devices (NUMA), as `torch.numa.binding` means it.

No numactl and no torch: the kernel is read, and told. Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch._lazy import attach

if TYPE_CHECKING:
    from plaunch_devices.binder import Binder as Binder
    from plaunch_devices.binder import RankBinding as RankBinding
    from plaunch_devices.binder import describe_bindings as describe_bindings
    from plaunch_devices.numa import AffinityMode as AffinityMode
    from plaunch_devices.numa import NumaOptions as NumaOptions

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "plaunch_devices.binder": "Binder RankBinding describe_bindings",
        "plaunch_devices.numa": "AffinityMode NumaOptions",
    },
)
