"""How many processes and threads are allowed here, and what to do when no more are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from plaunch.control_groups import group_paths

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEAR = 8  # processes and threads, which may have ended since


class System(Protocol):
    """Where limits are read; what cannot be read is empty."""

    def read(self, path: str) -> str:
        """The text of a file, without space around it."""

    def list(self, path: str) -> list[str]:
        """The names in a folder."""


@dataclass(frozen=True)
class Room:
    """A limit on processes and threads together, as in "ulimit -u allows 100, 42 are there"."""

    limit: str
    most: int
    there: int

    @property
    def left(self) -> int:
        """How many more there may be."""
        return self.most - self.there

    def __str__(self) -> str:
        return f"{self.limit} allows {self.most} processes and threads, {self.there} exist"


def describe_shortage(system: System | None = None) -> str:
    """Why there is no further process or thread, and what to do; of the limits, the nearest."""
    system = system or _Here()
    rooms = sorted([*find_rooms(system), *_kernel_rooms(system)], key=lambda room: room.left)
    if not rooms:
        return (
            "the system gives no more processes or threads, and plaunch finds no limit that is "
            "reached; check the free memory (ulimit -v, ulimit -s)"
        )
    near = [room for room in rooms if room.left < _NEAR] or rooms
    return (
        f"the system gives no more processes or threads: {'; '.join(map(str, near))}. Raise the "
        "limit (ulimit -u, limits.conf, docker --pids-limit, the pod's limit), start fewer "
        "workers, or end other processes"
    )


def find_rooms(system: System, user: int | None = None, soft: int | None = None) -> Iterator[Room]:
    """The limits that there are for this user and for its control groups.

    Args:
        system: where to look.
        user: whose processes are counted; by default those of this process's user.
        soft: the soft limit of processes; by default this process's.
    """
    import resource  # in trouble, and for the doctor

    user = os.getuid() if user is None else user
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0] if soft is None else soft
    if soft != resource.RLIM_INFINITY and user != 0:  # root is not held to it
        yield Room("ulimit -u", soft, _count_threads(system, user))
    limits = group_files(system, "pids", "pids.max", "pids.max")
    used = group_files(system, "pids", "pids.current", "pids.current")
    for limit, use in zip(limits, used, strict=False):
        if limit.isdecimal() and use.isdecimal():
            yield Room("pids.max of the control group", int(limit), int(use))


def _kernel_rooms(system: System) -> Iterator[Room]:
    # "0.12 0.20 0.22 2/345 6789": running and all
    there = system.read("/proc/loadavg").rpartition(" ")[0].rpartition("/")[2]
    for name in ("threads-max", "pid_max"):
        most = system.read(f"/proc/sys/kernel/{name}")
        if most.isdecimal() and there.isdecimal():
            yield Room(f"kernel.{name}", int(most), int(there))


def group_files(system: System, controller: str, new: str, old: str) -> list[str]:
    """The contents of a file in this process's control group, and in those above it.

    Args:
        system: where to look.
        controller: `memory`, `cpu` or `pids`.
        new: the file's name in version 2.
        old: its name in version 1.
    """
    groups = system.read("/proc/self/cgroup")
    texts = (system.read(path) for path in group_paths(groups, controller, new, old))
    return [text for text in texts if text]


def _count_threads(system: System, user: int) -> int:
    """How many threads this user's processes have."""
    total = 0
    for pid in filter(str.isdecimal, system.list("/proc")):
        status = system.read(f"/proc/{pid}/status")
        fields = dict(line.partition(":")[::2] for line in status.splitlines())
        if fields.get("Uid", "").split()[:1] == [str(user)]:
            total += int(fields.get("Threads", "1").strip() or 1)
    return total


class _Here:
    """This host."""

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
