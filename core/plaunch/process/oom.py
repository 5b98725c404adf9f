"""Whether the kernel's out-of-memory killer was at work, from its counters."""

from __future__ import annotations

import contextlib
import os


class OutOfMemoryWatch:
    """Remembers how often processes near this one were killed for want of memory.

    The counter is that of this process's control group (versions 2 and 1), which its workers are in
    unless somebody moved them; where groups do not count, the whole system's. It cannot tell which
    process was killed, so ask only about one that died by a SIGKILL that nobody here sent.

    Args:
        root: where the file system starts.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._path, self._count = self._find()

    def has_killed(self) -> bool:
        """Whether the counter has moved since the watch was made, or since it last had."""
        if not self._path:
            return False
        before, self._count = self._count, _read_counter(self._path)
        return before is not None and self._count is not None and self._count > before

    def _find(self) -> tuple[str, int | None]:
        for path in (*self._group_files(), os.path.join(self._root, "proc/vmstat")):
            count = _read_counter(path)
            if count is not None:
                return path, count
        return "", None

    def _group_files(self) -> list[str]:
        files: list[str] = []
        for line in _lines(os.path.join(self._root, "proc/self/cgroup")):
            # "0::/user.slice" in version 2, "4:memory:/docker/ab12" in version 1
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            inside = path.strip().lstrip("/")
            mount = os.path.join(self._root, "sys/fs/cgroup")
            if not controllers:
                # In a container the path may be the host's; then the mount itself is the group.
                files.append(os.path.join(mount, inside, "memory.events"))
                files.append(os.path.join(mount, "memory.events"))
            elif "memory" in controllers.split(","):
                files.append(os.path.join(mount, "memory", inside, "memory.oom_control"))
                files.append(os.path.join(mount, "memory", "memory.oom_control"))
        return files


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
