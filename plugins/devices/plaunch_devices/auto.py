"""One worker per accelerator, or per processor where there is none."""

from __future__ import annotations

import glob
import os
import sys
from typing import TYPE_CHECKING

from plaunch_devices.cpu import count_cpu
from plaunch_devices.gpu import find_gpus
from plaunch_devices.torch_child import AskTorch, TorchMissingError, ask_torch
from plaunch_devices.xpu import has_intel_gpu

if TYPE_CHECKING:
    from collections.abc import Mapping

# Accelerators whose torch package only registers itself when torch is imported.
_OTHERS = ("accel/accel[0-9]*", "cambricon_dev[0-9]*", "davinci[0-9]*", "neuron[0-9]*")


def count_auto(
    *,
    root: str = "/",
    environ: Mapping[str, str] | None = None,
    platform: str = sys.platform,
    affinity: int | None = None,
    ask: AskTorch = ask_torch,
) -> int:
    """Count the accelerators that the workers can see, or else the processors.

    torch is asked only on a machine that shows a device which nothing cheaper can judge. Where
    there is no torch, no worker can use an accelerator through it, and processors are counted.

    Args:
        root: where the file system starts.
        environ: the environment of visible-device lists; None is this process's.
        platform: as `sys.platform`.
        affinity: as for `count_cpu`.
        ask: how to ask torch.

    Raises:
        UsageError: torch is there and did not answer.
    """
    gpus = find_gpus(root, os.environ if environ is None else environ).count
    if gpus:
        return gpus
    if gpus is None or has_intel_gpu(root) or _has_others(root) or platform == "darwin":
        try:
            accelerators = ask("accelerator")
        except TorchMissingError as error:
            import logging  # noqa: PLC0415 - rare

            logging.getLogger("plaunch").info("counting processors: %s", error)
            accelerators = 0
        if accelerators:
            return accelerators
    return count_cpu(root=root, affinity=affinity)


def _has_others(root: str) -> bool:
    dev = os.path.join(glob.escape(root), "dev")
    return any(glob.glob(os.path.join(dev, pattern)) for pattern in _OTHERS)
