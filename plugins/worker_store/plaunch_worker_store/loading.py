"""Whether workers have loaded torch, seen from outside and without holding them up."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from plaunch.process import is_python, read_link, read_proc, read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_PROC = "/proc"
_SHORTEST = 0.1  # seconds between two looks, at first
_GROWTH = 1.4
_LAST_LOOK = 60.0  # seconds after which only a connection tells
_LIBRARY = b"/libtorch"  # the first that torch loads has a longer name, as all others have


class TorchWatch:
    """Looks for torch in one worker now and then, less and less often, and about 20 times in all.

    A look reads what the kernel says of the files that the worker has mapped, in a fraction of a
    millisecond. A worker that runs its program in a child is not seen to load it.

    Args:
        pid: the worker.
        began: when it was started, on the clock.
        proc: where the system tells its processes.
        clock: seconds that never go back.
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
        self._next = 0.0  # seconds after the start; above the last look, there is none

    def due(self) -> float | None:
        """Seconds until the next look; None if there is none."""
        if self._next > _LAST_LOOK:
            return None
        return max(self._began + self._next - self._clock(), 0.0)

    def look(self) -> bool:
        """Whether the worker has loaded torch, if a look is due."""
        if self.due() != 0.0:
            return False
        self._next = max(self._clock() - self._began, _SHORTEST) * _GROWTH
        return bool(_find_libraries(self._pid, self._proc))


def find_torch(workers: Collection[int], proc: str = _PROC) -> tuple[str, str] | None:
    """The interpreter of a worker, or of what it has started, that has loaded torch, and where.

    The place is the folder in which the package is. None if no worker has loaded it, or only one
    that is no interpreter. It looks at every process of theirs that can still be told by its
    parents.
    """
    family = set(workers)
    table = read_table(proc)
    while born := {p.pid for p in table.values() if p.ppid in family} - family:
        family |= born
    for pid in sorted(family):
        for library in _find_libraries(pid, proc):
            package, marker, _ = library.rpartition("/lib/libtorch")
            if not marker or os.path.basename(package) != "torch":
                continue
            program = read_link(f"{pid}/exe", proc)
            if is_python(program):
                return program, os.path.dirname(package)
            break
    return None


def _find_libraries(pid: int, proc: str) -> list[str]:
    """The paths of libraries of torch's that a process has mapped, and that are still there."""
    maps = read_proc(f"{pid}/maps", proc)
    found: list[str] = []
    at = -1
    while (at := maps.find(_LIBRARY, at + 1)) >= 0:
        begin, end = maps.rfind(b"\n", 0, at) + 1, maps.find(b"\n", at)
        line = maps[begin : end if end >= 0 else None]
        # A folder may have such a name as well; a file that was replaced is marked as deleted.
        if b"/" not in line[at + 1 - begin :] and not line.endswith(b" (deleted)"):
            path = os.fsdecode(line.split(None, 5)[-1])
            if path not in found:
                found.append(path)
    return found
