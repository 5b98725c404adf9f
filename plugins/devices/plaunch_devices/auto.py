"""One worker per accelerator, or per processor where there is none."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from plaunch.devices import (
    AskTorch,
    TorchMissingError,
    ask_torch,
    has_intel_gpu,
    needs_torch,
)

from plaunch_devices.cpu import count_cpu
from plaunch_devices.gpu import find_gpus

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    if gpus is None or has_intel_gpu(root) or needs_torch(root) or platform == "darwin":
        try:
            accelerators = ask("accelerator")
        except TorchMissingError as error:
            import logging  # noqa: PLC0415 - rare

            logging.getLogger("plaunch").info("counting processors: %s", error)
            accelerators = 0
        if accelerators:
            return accelerators
    return count_cpu(root=root, affinity=affinity)
