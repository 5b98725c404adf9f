"""Counting the devices that torch would see, for the number of workers of a node."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from plaunch.errors import UsageError

from plaunch_devices.kernel import (
    has_intel_gpu,
    has_slices,
    list_amd,
    list_nvidia,
    list_nvidia_files,
    needs_driver,
    needs_torch,
)
from plaunch_devices.topology import count_cpu
from plaunch_devices.torch_child import AskTorch, TorchMissingError, ask_torch
from plaunch_devices.visible import amd_list, count_visible

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
    """Count the accelerators that workers can see or, without any, the CPUs.

    torch is asked only if the kernel's files do not suffice. If torch is not installed, CPUs are
    counted.

    Args:
        root: the root of the file system.
        environ: the environment with the lists of visible devices; None for that of this process.
        platform: the value of `sys.platform`.
        affinity: as for `count_cpu`.
        ask: asks torch.

    Raises:
        UsageError: torch is installed, but did not answer.
    """
    gpus, _ = _find_gpus(root, os.environ if environ is None else environ)
    if gpus:
        return gpus
    if gpus is None or has_intel_gpu(root) or needs_torch(root) or platform == "darwin":
        try:
            accelerators = ask("accelerator")
        except TorchMissingError as error:
            import logging  # rare

            logging.getLogger("plaunch").info("counting processors: %s", error)
            accelerators = 0
        if accelerators:
            return accelerators
    return count_cpu(root=root, affinity=affinity)


def count_gpu(
    *, root: str = "/", environ: Mapping[str, str] | None = None, ask: AskTorch = ask_torch
) -> int:
    """Count the GPUs that the workers can see; at least 1.

    Honours `CUDA_VISIBLE_DEVICES`, and for AMD `ROCR_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES`.
    torch is asked for slices of GPUs (MIG), for UUIDs that cannot be checked, and if devices of
    both vendors are present.

    Args:
        root: the root of the file system.
        environ: the environment with the lists of visible devices; None for that of this process.
        ask: asks torch.

    Raises:
        UsageError: there is no GPU (a ValueError, as in torchrun), or torch did not answer.
    """
    count, why = _find_gpus(root, os.environ if environ is None else environ)
    if count is None:
        count, why = ask("cuda"), f"{why}, but torch.cuda sees no device"
    if count == 0:
        raise UsageError(f"no GPU to count: {why}; give a number, or 'cpu' or 'auto'")
    return count


def count_xpu(*, root: str = "/", ask: AskTorch = ask_torch) -> int:
    """Count the Intel GPUs that the workers can see; at least 1.

    Whether torch can use a GPU, and as how many devices, depends on its model, its tiles and
    `ZE_AFFINITY_MASK`; so torch is asked if there is an Intel GPU.

    Args:
        root: the root of the file system.
        ask: asks torch.

    Raises:
        UsageError: there is no GPU (a ValueError, as in torchrun), or torch did not answer.
    """
    if not has_intel_gpu(root):
        raise UsageError(
            "no Intel GPU to count: no render device in /sys/class/drm is Intel's, and there is no "
            "/dev/dxg; give a number, or 'cpu' or 'auto'"
        )
    count = ask("xpu")
    if count == 0:
        raise UsageError(
            "no Intel GPU to count: /sys/class/drm or /dev/dxg lists one, but torch.xpu sees no "
            "device; give a number, or 'cpu' or 'auto'"
        )
    return count


def _find_gpus(root: str, environ: Mapping[str, str]) -> tuple[int | None, str]:
    """Count the GPUs (None if only torch knows), and name what was read."""
    nvidia = list_nvidia_files(root)
    amd = list_amd(root)
    if needs_driver(root):
        return (None, "this machine's GPU driver lists no devices")
    if nvidia and amd:
        return (None, "/dev has devices of both NVIDIA and AMD")
    if nvidia:
        return _count_nvidia(root, environ, len(nvidia))
    if amd:
        return _count_amd(environ, len(amd))
    return (0, "/dev has no nvidia0 and no kfd with a GPU")


def _count_nvidia(root: str, environ: Mapping[str, str], total: int) -> tuple[int | None, str]:
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    why = f"/dev has {total} NVIDIA device(s), {_describe('CUDA_VISIBLE_DEVICES', mask)}"
    if has_slices(root):
        count = 0 if mask == "" else None
    else:
        count = count_visible(mask, total, _list_uuids(root))
    return (count, why)


def _count_amd(environ: Mapping[str, str], total: int) -> tuple[int | None, str]:
    """ROCR's list is applied first; the other one selects from the remaining devices."""
    names = ("ROCR_VISIBLE_DEVICES", amd_list(environ))
    count: int | None = total
    for name in names:
        if count is not None:
            count = count_visible(environ.get(name), count)
    lists = ", ".join(_describe(name, environ.get(name)) for name in names)
    return (count, f"/dev/kfd has {total} AMD GPU(s), {lists}")


def _list_uuids(root: str) -> list[str]:
    """The UUIDs of all NVIDIA GPUs; empty if one of them is unknown."""
    uuids = [device.uuid for device in list_nvidia(root)]
    return uuids if all(uuids) else []


def _describe(name: str, value: str | None) -> str:
    return f"{name} is {'not set' if value is None else repr(value)}"
