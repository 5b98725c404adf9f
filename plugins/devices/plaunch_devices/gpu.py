"""How many GPUs torch.cuda would see: NVIDIA's, or AMD's under ROCm."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.devices import (
    AskTorch,
    ask_torch,
    count_visible,
    has_slices,
    list_amd,
    list_nvidia,
    list_nvidia_files,
    needs_driver,
)
from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    nvidia = list_nvidia_files(root)
    amd = list_amd(root)
    if needs_driver(root):
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
    if has_slices(root):
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


def _list_uuids(root: str) -> list[str]:
    """The UUIDs of all NVIDIA GPUs; none if one of them is not known."""
    uuids = [device.uuid for device in list_nvidia(root)]
    return uuids if all(uuids) else []


def _say(name: str, value: str | None) -> str:
    return f"{name} is {'not set' if value is None else repr(value)}"
