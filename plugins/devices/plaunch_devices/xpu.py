"""How many Intel GPUs torch.xpu would see."""

from __future__ import annotations

from plaunch.devices import AskTorch, ask_torch, has_intel_gpu
from plaunch.errors import UsageError


def count_xpu(*, root: str = "/", ask: AskTorch = ask_torch) -> int:
    """Count the Intel GPUs that the workers can see; at least 1.

    Whether torch can use a GPU, and as how many devices, depends on its model, its tiles and
    `ZE_AFFINITY_MASK`; so torch is asked, if there is an Intel GPU at all.

    Args:
        root: where the file system starts.
        ask: how to ask torch.

    Raises:
        UsageError: there is none (a ValueError, as in torchrun), or torch did not answer.
    """
    if not has_intel_gpu(root):
        raise UsageError(
            "no Intel GPU to count: no render device in /sys/class/drm is Intel's, and there is no "
            "/dev/dxg; give a number, or 'cpu' or 'auto'"
        )
    count = ask("xpu")
    if count == 0:
        raise UsageError(
            "no Intel GPU to count: /sys/class/drm or /dev/dxg has one, and torch.xpu sees no "
            "device; give a number, or 'cpu' or 'auto'"
        )
    return count
