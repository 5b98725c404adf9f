"""How many GPUs torch.cuda would see: NVIDIA's, or AMD's under ROCm."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.errors import UsageError

from plaunch_devices.torch_child import AskTorch, ask_torch
from plaunch_devices.visible import count_visible

if TYPE_CHECKING:
    from collections.abc import Mapping

# Where there is one of these, only the driver knows: WSL, and NVIDIA's Tegra boards.
_OPAQUE = ("dev/dxg", "dev/nvgpu", "dev/nvhost-gpu", "dev/nvhost-ctrl-gpu")


@dataclass(frozen=True)
class Finding:
    """What the kernel shows of one kind of device.

    `count` is None where only torch can tell; `why` says what was looked at, for an error message.
    """

    count: int | None
    why: str


def count_gpu(
    *, root: str = "/", environ: Mapping[str, str] | None = None, ask: AskTorch = ask_torch
) -> int:
    """Count the GPUs that the workers can see; at least 1.

    Honours `CUDA_VISIBLE_DEVICES`, and for AMD `ROCR_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES`.
    torch is asked about slices of GPUs (MIG), about UUIDs that cannot be checked, and where
    devices of both vendors are present.

    Args:
        root: where the file system starts.
        environ: the environment that the lists are taken from; None is this process's.
        ask: how to ask torch.

    Raises:
        UsageError: there is none (a ValueError, as in torchrun), or torch did not answer.
    """
    found = find_gpus(root, os.environ if environ is None else environ)
    count, why = found.count, found.why
    if count is None:
        count, why = ask("cuda"), f"{why}, and torch.cuda sees no device"
    if count == 0:
        raise UsageError(f"no GPU to count: {why}; give a number, or 'cpu' or 'auto'")
    return count


def find_gpus(root: str, environ: Mapping[str, str]) -> Finding:
    """Look for GPUs without asking any driver."""
    nvidia = _list(root, "dev/nvidia[0-9]*", r"nvidia\d+")
    amd = _list_amd(root)
    if any(os.path.exists(os.path.join(root, path)) for path in _OPAQUE):
        return Finding(None, "this machine's GPU driver lists no devices")
    if nvidia and amd:
        return Finding(None, "/dev has devices of both NVIDIA and AMD")
    if nvidia:
        return _count_nvidia(root, environ, len(nvidia))
    if amd:
        return _count_amd(environ, len(amd))
    return Finding(0, "/dev has no nvidia0 and no kfd with a GPU")


def _count_nvidia(root: str, environ: Mapping[str, str], total: int) -> Finding:
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    why = f"/dev has {total} NVIDIA device(s), {_say('CUDA_VISIBLE_DEVICES', mask)}"
    # A GPU that is cut into slices is not counted as one device.
    if glob.glob(os.path.join(root, "proc/driver/nvidia/capabilities/gpu[0-9]*/mig/gi[0-9]*")):
        count = 0 if mask == "" else None
    else:
        count = count_visible(mask, total, _list_uuids(root))
    return Finding(count, why)


def _count_amd(environ: Mapping[str, str], total: int) -> Finding:
    """ROCR's list comes first; the other one selects from what it leaves."""
    names = ["ROCR_VISIBLE_DEVICES"]
    names += ["HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"]
    count: int | None = total
    for name in names:
        if count is not None:
            count = count_visible(environ.get(name), count)
    said = ", ".join(_say(name, environ.get(name)) for name in names)
    return Finding(count, f"/dev/kfd has {total} AMD GPU(s), {said}")


def _list_amd(root: str) -> list[str]:
    """The GPU nodes of the kernel driver whose render device is in /dev (in this container)."""
    if not os.path.exists(os.path.join(root, "dev/kfd")):
        return []
    gpus = []
    for path in _list(root, "sys/class/kfd/kfd/topology/nodes/*/properties", "properties"):
        properties = dict(re.findall(r"^(\w+) (\d+)$", _read(path), re.MULTILINE))
        render = properties.get("drm_render_minor", "0")
        if int(properties.get("simd_count", 0)) == 0:  # a processor
            continue
        if render == "0" or os.path.exists(os.path.join(root, f"dev/dri/renderD{render}")):
            gpus.append(path)
    return gpus


def _list_uuids(root: str) -> list[str]:
    """The UUIDs of all NVIDIA GPUs; none if one of them is not known."""
    uuids = []
    for path in _list(root, "proc/driver/nvidia/gpus/*/information", "information"):
        match = re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", _read(path), re.MULTILINE)
        if match is None:
            return []
        uuids.append(match.group(1))
    return uuids


def _list(root: str, pattern: str, name: str) -> list[str]:
    """The paths that match `pattern` and whose last part is `name`, a regular expression."""
    paths = glob.glob(os.path.join(glob.escape(root), pattern))
    return [path for path in sorted(paths) if re.fullmatch(name, os.path.basename(path))]


def _read(path: str) -> str:
    """A file of the kernel's; empty if it may not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _say(name: str, value: str | None) -> str:
    return f"{name} is {'not set' if value is None else repr(value)}"
