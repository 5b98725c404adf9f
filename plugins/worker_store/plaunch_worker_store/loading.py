"""Detects from outside, without pausing them, whether workers have loaded torch."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from plaunch.process import is_python, read_link, read_proc, read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_PROC = "/proc"
_FIRST_INTERVAL = 0.1  # seconds between the first two checks
_GROWTH = 1.4
_LAST_CHECK = 60.0  # seconds after which only a connection counts
_LIBRARY = b"/libtorch"  # the library that torch loads first has a longer name, as all others have


class TorchWatch:
    """Checks one worker for torch, less and less often, and about 20 times in all.

    A check reads the worker's memory maps from the kernel, in a fraction of a millisecond. It does
    not detect torch in a child of the worker.

    Args:
        pid: the worker.
        began: when it was started, on the clock.
        proc: the folder of the proc file system.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        pid: int,
        *,
        began: float,
        proc: str = _PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pid = pid
        self._proc = proc
        self._clock = clock
        self._began = began
        self._next = 0.0  # seconds after the start; there is none after the last check

    def due(self) -> float | None:
        """Seconds until the next check; None if there is none."""
        if self._next > _LAST_CHECK:
            return None
        return max(self._began + self._next - self._clock(), 0.0)

    def check(self) -> bool:
        """Whether the worker has loaded torch, if a check is due."""
        if self.due() != 0.0:
            return False
        self._next = max(self._clock() - self._began, _FIRST_INTERVAL) * _GROWTH
        return bool(find_libraries(self._pid, self._proc))


def find_torch(workers: Collection[int], proc: str = _PROC) -> tuple[str, str] | None:
    """Find an interpreter among the workers and their descendants that has loaded torch.

    Returns:
        The interpreter, and the folder that contains the package. None if no interpreter has loaded
        it. All descendants that are still linked by their parents are checked.
    """
    family = set(workers)
    table = read_table(proc)
    while born := {p.pid for p in table.values() if p.ppid in family} - family:
        family |= born
    for pid in sorted(family):
        for library in find_libraries(pid, proc):
            package, marker, _ = library.rpartition("/lib/libtorch")
            if not marker or os.path.basename(package) != "torch":
                continue
            program = read_link(f"{pid}/exe", proc)
            if is_python(program):
                return program, os.path.dirname(package)
            break
    return None


def find_libraries(pid: int, proc: str) -> list[str]:
    """Return the paths of torch's libraries that a process has mapped, and that still exist."""
    maps = read_proc(f"{pid}/maps", proc)
    found: list[str] = []
    at = -1
    while (at := maps.find(_LIBRARY, at + 1)) >= 0:
        begin, end = maps.rfind(b"\n", 0, at) + 1, maps.find(b"\n", at)
        line = maps[begin : end if end >= 0 else None]
        # A folder may have such a name as well; a replaced file is marked as deleted.
        if b"/" not in line[at + 1 - begin :] and not line.endswith(b" (deleted)"):
            path = os.fsdecode(line.split(None, 5)[-1])
            if path not in found:
                found.append(path)
    return found
