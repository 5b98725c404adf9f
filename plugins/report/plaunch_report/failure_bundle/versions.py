"""The versions of plaunch, Python, the system, drivers, and all installed distributions."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING

from plaunch import __version__

from plaunch_report.failure_bundle.gathering import File

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DISTRIBUTION = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
_FILES = {"driver": "/proc/driver/nvidia/version", "AMD driver": "/sys/module/amdgpu/version"}


def find_versions(path: Sequence[str]) -> Iterator[File]:
    """List the versions; `path` are folders of distributions, of which only names are read."""
    system = os.uname()
    lines = [
        f"plaunch {__version__}",
        f"Python {' '.join(sys.version.split())} ({sys.executable})",
        f"{system.sysname} {system.release} {system.version} {system.machine}",
        f"processors: {os.cpu_count()}, of which usable: {len(os.sched_getaffinity(0))}",
    ]
    for what, file_name in _FILES.items():
        with contextlib.suppress(OSError), open(file_name, encoding="utf-8") as file:
            lines.append(f"{what}: {file.readline(1000).strip()}")
    lines += ["", *_distributions(path)]
    yield File("versions.txt", ("\n".join(lines) + "\n").encode(errors="replace"))


def _distributions(path: Sequence[str]) -> list[str]:
    found: dict[str, str] = {}
    for folder in path:
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir(folder or ".")
        for match in filter(None, map(_DISTRIBUTION.fullmatch, names)):
            found.setdefault(match["name"], match["version"])  # the first one is imported
    return [f"{name} {found[name]}" for name in sorted(found, key=str.lower)]
