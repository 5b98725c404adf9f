"""Reads from the kernel's counters whether the out-of-memory killer has killed processes."""

from __future__ import annotations

from plaunch.control_groups import group_paths
from plaunch.process.kernel.proc import read_proc


class OutOfMemoryWatch:
    """Counts how often processes near this one were killed for lack of memory.

    The counter is that of this process's control group (versions 2 and 1), in which its workers are
    unless they were moved, or of the nearest group above it that counts; otherwise that of the
    system. It does not show which process was killed, so ask only about a worker that got a
    SIGKILL from outside.

    Args:
        root: the root of the file system.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._path, self._count = self._find()
        self._has_moved = False

    def has_killed(self) -> bool:
        """Whether the counter has increased since the watch was created."""
        if self._path and not self._has_moved:
            before, self._count = self._count, self._read_counter(self._path)
            if before is not None and self._count is not None:
                self._has_moved = self._count > before
        return self._has_moved

    def _find(self) -> tuple[str, int | None]:
        groups = self._read("proc/self/cgroup")
        paths = group_paths(groups, "memory", "memory.events", "memory.oom_control")
        for path in (*paths, "proc/vmstat"):
            count = self._read_counter(path)
            if count is not None:
                return path, count
        return "", None

    def _read_counter(self, path: str) -> int | None:
        for line in self._read(path).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdecimal():
                return int(value)
        return None

    def _read(self, path: str) -> str:
        return read_proc(path, self._root).decode(errors="replace")
