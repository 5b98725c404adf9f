"""Whether the kernel's out-of-memory killer was at work, from its counters."""

from __future__ import annotations

import contextlib

from plaunch.control_groups import group_paths


class OutOfMemoryWatch:
    """Counts how often processes near this one were killed for lack of memory.

    The counter is that of this process's control group (versions 2 and 1), which its workers are in
    unless somebody moved them, or of the nearest one above it that counts; where none does, the
    whole system's. It does not know which
    process was killed, so ask only about one that got a SIGKILL from outside.

    Args:
        root: where the file system starts.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")
        self._path, self._count = self._find()
        self._has_moved = False

    def has_killed(self) -> bool:
        """Whether the counter has moved since the watch was made."""
        if self._path and not self._has_moved:
            before, self._count = self._count, _read_counter(self._path)
            if before is not None and self._count is not None:
                self._has_moved = self._count > before
        return self._has_moved

    def _find(self) -> tuple[str, int | None]:
        groups = "".join(_lines(self._root + "/proc/self/cgroup"))
        paths = group_paths(groups, "memory", "memory.events", "memory.oom_control")
        for path in (*paths, "/proc/vmstat"):
            count = _read_counter(self._root + path)
            if count is not None:
                return self._root + path, count
        return "", None


def _read_counter(path: str) -> int | None:
    for line in _lines(path):
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None


def _lines(path: str) -> list[str]:
    with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.readlines()
    return []
