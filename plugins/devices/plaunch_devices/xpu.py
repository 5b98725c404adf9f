"""How many Intel GPUs torch.xpu would see."""

from __future__ import annotations

import glob
import os

from plaunch.errors import UsageError

from plaunch_devices.torch_child import AskTorch, ask_torch

_INTEL = "0x8086"


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


def has_intel_gpu(root: str) -> bool:
    """Whether there may be an Intel GPU that computes."""
    if os.path.exists(os.path.join(root, "dev/dxg")):
        return True
    pattern = os.path.join(glob.escape(root), "sys/class/drm/renderD*/device/vendor")
    for path in glob.glob(pattern):
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                if file.read().strip() == _INTEL:
                    return True
        except OSError:
            continue  # a device that vanished, or that a container hides
    return False
