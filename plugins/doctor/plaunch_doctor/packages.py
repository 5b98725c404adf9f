"""Check of the versions of Python and torch, and of the platform that torch was built for."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch_doctor.context import NodeContext

_TESTED = ((3, 10), (3, 13))
_TORCH = (2, 3)  # the lower bound in the extra `c10d`


def check_versions(context: NodeContext) -> Iterator[Finding]:
    """Check Python and torch in the launcher's environment. Does not import torch."""
    python = context.machine.version
    if not _TESTED[0] <= python[:2] <= _TESTED[1]:
        yield Finding(
            Status.WARNING,
            "Python",
            f"{'.'.join(map(str, python))}; plaunch is tested with 3.10 to 3.13",
            "use one of those if anything looks odd",
        )
    found = context.machine.distribution("torch")
    if found is None:
        is_needed = context.backend.rpartition(":")[2] == "c10d"
        yield Finding(
            Status.PROBLEM if is_needed else Status.WARNING,
            "torch",
            f"not installed in {context.machine.prefix}"
            + (", but the backend c10d needs it" if is_needed else ""),
            "pip install 'plaunch[c10d]'"
            if is_needed
            else "install it here if the workers use it (plaunch itself does not)",
        )
        return
    version, folder = found
    built_for = _built_for(folder, version)
    said = f"{version}, built for {built_for}"
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < _TORCH:
        yield Finding(
            Status.WARNING,
            "torch",
            f"{said}; plaunch's extra c10d asks for {'.'.join(map(str, _TORCH))} or newer",
            "pip install -U torch",
        )
        return
    vendor = _vendor(context)
    if vendor and built_for == "CPU":
        yield Finding(
            Status.WARNING,
            "torch",
            f"{said}, but this node has devices of {vendor}",
            f"install a build for {vendor}: https://pytorch.org/get-started/locally",
        )
        return
    yield Finding(Status.OK, "torch", said)


def _vendor(context: NodeContext) -> str:
    devices = context.list("/dev")
    if any(re.fullmatch(r"nvidia\d+", name) for name in devices):
        return "NVIDIA"
    return "AMD" if "kfd" in devices else ""


def _built_for(folder: str, version: str) -> str:
    """Return the platform from torch's `version.py`, such as CUDA 12.6, ROCm 6.2, or CPU."""
    try:
        with open(os.path.join(folder, "torch", "version.py"), encoding="utf-8") as file:
            text = file.read(1 << 16)
    except OSError:
        text = ""
    for name, said in (("cuda", "CUDA"), ("hip", "ROCm"), ("xpu", "XPU")):
        match = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        if match is not None:
            return f"{said} {match[1]}"
    return "CPU" if text or version.endswith("+cpu") else "an unknown platform"
