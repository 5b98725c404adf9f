"""Limits on processes and threads, and the error text for when one of them is reached."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from plaunch.process import group_paths

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEAR = 8  # a limit counts as reached with this many left: some may have ended since the failure


class System(Protocol):
    """Reads the files that contain limits. Whatever cannot be read is empty."""

    def read(self, path: str) -> str:
        """Return the text of a file, stripped."""

    def list(self, path: str) -> list[str]:
        """Return the names in a folder."""


@dataclass(frozen=True)
class ProcessLimit:
    """A limit on processes and threads together, and how many exist."""

    name: str
    maximum: int
    used: int

    @property
    def left(self) -> int:
        """How many more can be started."""
        return self.maximum - self.used

    def __str__(self) -> str:
        return f"{self.name} allows {self.maximum} processes and threads, {self.used} exist"


def describe_shortage(system: System | None = None) -> str:
    """Explain why a process or thread cannot be started: name the limits reached, and a fix."""
    system = system or _LocalFiles()
    limits = sorted(
        [*find_process_limits(system), *_kernel_limits(system)], key=lambda limit: limit.left
    )
    if not limits:
        return (
            "the system gives no more processes or threads, and plaunch finds no limit that is "
            "reached; check the free memory (ulimit -v, ulimit -s)"
        )
    near = [limit for limit in limits if limit.left < _NEAR] or limits
    return (
        f"the system gives no more processes or threads: {'; '.join(map(str, near))}. Raise the "
        "limit (ulimit -u, limits.conf, docker --pids-limit, the pod's limit), start fewer "
        "workers, or end other processes"
    )


def find_process_limits(
    system: System, user: int | None = None, soft: int | None = None
) -> Iterator[ProcessLimit]:
    """Yield the limits of this user and of this process's control groups.

    Args:
        system: where limits are read.
        user: the user whose threads are counted; by default this process's.
        soft: the soft limit RLIMIT_NPROC; by default this process's.
    """
    import resource  # errors and the doctor only

    user = os.getuid() if user is None else user
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0] if soft is None else soft
    if soft != resource.RLIM_INFINITY and user != 0:  # does not apply to root
        yield ProcessLimit("ulimit -u", soft, _count_threads(system, user))
    limits = group_files(system, "pids", "pids.max", "pids.max")
    used = group_files(system, "pids", "pids.current", "pids.current")
    for limit, use in zip(limits, used, strict=False):
        if limit.isdecimal() and use.isdecimal():
            yield ProcessLimit("pids.max of the control group", int(limit), int(use))


def _kernel_limits(system: System) -> Iterator[ProcessLimit]:
    # "0.12 0.20 0.22 2/345 6789": 2 running threads of 345
    used = system.read("/proc/loadavg").rpartition(" ")[0].rpartition("/")[2]
    for name in ("threads-max", "pid_max"):
        maximum = system.read(f"/proc/sys/kernel/{name}")
        if maximum.isdecimal() and used.isdecimal():
            yield ProcessLimit(f"kernel.{name}", int(maximum), int(used))


def group_files(system: System, controller: str, new: str, old: str) -> list[str]:
    """Return the contents of a file in this process's control group and in its parents.

    Args:
        system: where files are read.
        controller: `memory`, `cpu` or `pids`.
        new: the file's name in version 2.
        old: its name in version 1.
    """
    groups = system.read("/proc/self/cgroup")
    texts = (system.read(path) for path in group_paths(groups, controller, new, old))
    return [text for text in texts if text]


def _count_threads(system: System, user: int) -> int:
    """Count the threads of this user's processes."""
    total = 0
    for pid in filter(str.isdecimal, system.list("/proc")):
        status = system.read(f"/proc/{pid}/status")
        fields = dict(line.partition(":")[::2] for line in status.splitlines())
        if fields.get("Uid", "").split()[:1] == [str(user)]:
            total += int(fields.get("Threads", "1").strip() or 1)
    return total


class _LocalFiles:
    """The files of this host."""

    def read(self, path: str) -> str:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read(1 << 20).strip()
        except OSError:
            return ""

    def list(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except OSError:
            return []
