"""The doctor's checks of devices: the driver, the visible devices, and their number."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status

from plaunch_devices.kernel import list_nvidia_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.doctor import DoctorContext

_WHAT = "devices"
_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # the PCI class of GPUs


def check_accelerators(context: DoctorContext) -> Iterator[Finding]:
    """Check NVIDIA's and AMD's devices by the kernel's files, without calling a driver."""
    nodes = len(list_nvidia_files(context.root))
    # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar ..."
    driver = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", context.read("/proc/driver/nvidia/version"))
    if driver is not None or nodes:
        version = driver[1] if driver is not None else "of unknown version"
        yield _check_nvidia(context, version, nodes)
        return
    if _has_pci_gpu(context):
        yield Finding(
            Status.WARNING,
            _WHAT,
            "this node has an NVIDIA GPU, but no driver for it is loaded",
            "load the driver (modprobe nvidia, nvidia-smi), or start the container with "
            "--gpus all or nvidia.com/gpu in the pod's limits",
        )
        return
    if os.path.exists(context.path("/dev/kfd")):
        renders = [n for n in context.list("/dev/dri") if n.startswith("renderD")]
        yield Finding(
            Status.OK if renders else Status.PROBLEM,
            _WHAT,
            f"AMD's driver, {len(renders)} render device(s)",
            "" if renders else "start the container with --device=/dev/kfd --device=/dev/dri",
        )
        return
    yield Finding(Status.OK, _WHAT, "no NVIDIA or AMD GPU is visible here")


def _check_nvidia(context: DoctorContext, version: str, nodes: int) -> Finding:
    known = len(context.list("/proc/driver/nvidia/gpus"))
    found = f"NVIDIA driver {version}, {nodes} device(s) in /dev"
    if known > nodes:
        found += f" of {known} in the machine"
    if not nodes:
        return Finding(
            Status.PROBLEM,
            _WHAT,
            found,
            "the driver is loaded, but this process has access to none of its devices: start the "
            "container with --gpus all, or ask the scheduler for them",
        )
    if not os.path.exists(context.path("/dev/nvidiactl")):
        return Finding(
            Status.PROBLEM,
            _WHAT,
            f"{found}, but no /dev/nvidiactl",
            "run nvidia-smi on the host, and start the container with --gpus all",
        )
    mask = context.environ.get("CUDA_VISIBLE_DEVICES")
    visible = nodes
    if mask is not None:
        words = [word.strip() for word in mask.split(",") if word.strip()]
        found += f", CUDA_VISIBLE_DEVICES={mask}"
        bad = [word for word in words if word.isdecimal() and int(word) >= max(known, nodes)]
        if bad or "-1" in words:
            return Finding(
                Status.PROBLEM,
                _WHAT,
                found,
                f"{', '.join(bad) or '-1'} is not a device here, and CUDA ignores the rest of the "
                "list: correct the variable",
            )
        visible = len(words)
    if visible < context.nproc and context.options.get("nproc_per_node") != "cpu":
        return Finding(
            Status.WARNING,
            _WHAT,
            f"{found}; {context.nproc} workers share {visible}",
            "give --nproc-per-node=gpu, or as many workers as there are devices",
        )
    return Finding(Status.OK, _WHAT, found)


def _has_pci_gpu(context: DoctorContext) -> bool:
    folder = "/sys/bus/pci/devices"
    return any(
        context.read(f"{folder}/{name}/vendor") == _NVIDIA
        and context.read(f"{folder}/{name}/class").startswith(_DISPLAY)
        for name in context.list(folder)
    )
