"""`memory`: enough of it is free, and what earlier workers took is back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from plaunch.control_groups import group_paths
from plaunch.doctor import Finding, Status
from plaunch.numbers import format_bytes

from plaunch_doctor.health.sizes import read_size
from plaunch_doctor.health.waiting import Patience

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.health import HealthOccasion
    from plaunch.plugin import PluginContext

_WHAT = "memory"
_FLOOR = 0.05  # of the whole, if the user names none
_SLACK = 0.1  # of the whole: what may be gone since the start without being the workers'
_HUGE = 1 << 60  # version 1 of control groups says "no limit" with a number near 2**63


class Memory(NamedTuple):
    """The memory of this node, or of the control group that the launcher is in, in bytes."""

    whole: int
    available: int


class MemoryCheck:
    """Looks at the available memory, and waits for what the workers of the last round had.

    Args:
        context: the launch; the argument is how much must be available.
        root: where the file system starts; `/` but in tests.
    """

    takes_argument = True

    def __init__(self, context: PluginContext, root: str = "/") -> None:
        argument = context.options.get("argument")
        self._floor = None if argument is None else read_size(argument, _WHAT)
        self._root = root
        self._at_start: int | None = None  # bytes that were available
        self._patience = Patience()

    def check(self, occasion: HealthOccasion) -> Iterator[Finding]:
        """Look, and look again while there is too little."""
        self._patience.begin(occasion)
        memory = read_memory(self._root)
        while memory is not None and self._trouble(memory) and self._patience.pause():
            memory = read_memory(self._root)
        if memory is None:
            yield Finding(Status.OK, _WHAT, "the system does not say how much is available")
            return
        said = f"{format_bytes(memory.available)} available of {format_bytes(memory.whole)}"
        trouble = self._trouble(memory)
        if self._at_start is None:
            self._at_start = memory.available
        if trouble:
            yield Finding(
                Status.PROBLEM,
                _WHAT,
                f"{said}, {trouble}",
                "end what uses it: processes that workers left behind, files in /dev/shm",
            )
        else:
            yield Finding(Status.OK, _WHAT, said)

    def close(self) -> None:
        """Do not wait any longer."""
        self._patience.end()

    def _trouble(self, memory: Memory) -> str:
        floor = int(memory.whole * _FLOOR) if self._floor is None else self._floor
        if memory.available < floor:
            return f"less than {format_bytes(floor)}"
        gone = 0 if self._at_start is None else self._at_start - memory.available
        if gone > memory.whole * _SLACK:
            return f"{format_bytes(gone)} less than at the start"
        return ""


def read_memory(root: str) -> Memory | None:
    """The memory that this process may use; None if the system does not say."""
    info: dict[str, int] = {}
    for line in _read(root, "/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if rest.split()[:1] and rest.split()[0].isdecimal():
            info[name] = int(rest.split()[0]) * 1024
    if "MemTotal" not in info or "MemAvailable" not in info:
        return None
    memory = Memory(info["MemTotal"], info["MemAvailable"])
    groups = _read(root, "/proc/self/cgroup")
    limits = group_paths(groups, "memory", "memory.max", "memory.limit_in_bytes")
    uses = group_paths(groups, "memory", "memory.current", "memory.usage_in_bytes")
    for limit_path, use_path in zip(limits, uses, strict=True):
        limit, use = _read(root, limit_path).strip(), _read(root, use_path).strip()
        if limit.isdecimal() and use.isdecimal() and int(limit) < _HUGE:
            # Files that were read count as used there, although they make room for others.
            cache = _inactive_files(_read(root, f"{os.path.dirname(use_path)}/memory.stat"))
            left = max(int(limit) - max(int(use) - cache, 0), 0)
            memory = min(memory, Memory(int(limit), left), key=lambda each: each.available)
    return memory


def _inactive_files(stat: str) -> int:
    values = dict(line.split(maxsplit=1) for line in stat.splitlines() if " " in line)
    text = values.get("total_inactive_file", values.get("inactive_file", "0"))
    return int(text) if text.isdecimal() else 0


def _read(root: str, path: str) -> str:
    try:
        with open(os.path.join(root, path.lstrip("/")), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
