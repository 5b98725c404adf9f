"""The built-in device counters, the words that `--nproc-per-node` takes instead of a number.

None of them imports torch: they read what the kernel shows, and ask torch in a short-lived child
process only where that cannot tell.
"""

from __future__ import annotations

from plaunch_devices.auto import count_auto
from plaunch_devices.cpu import count_cpu
from plaunch_devices.gpu import count_gpu
from plaunch_devices.xpu import count_xpu

__all__ = ["count_auto", "count_cpu", "count_gpu", "count_xpu"]
