"""The processes of this system at one moment, as /proc tells them, and signals to exactly those."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, NamedTuple

from plaunch.process.kernel.pidfd import open_pidfd

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PROC = "/proc"

Identity = tuple[int, int]  # number and start

_STAT_BYTES = 4096
_ENDED = ("Z", "X", "x")
_MOST_READS = 16  # of the lists of children, while threads end


class Process(NamedTuple):
    """One process as it was when the table was read.

    A number is given to another process once its owner is gone; number and `start` together
    are not. `start` is in clock ticks since the system was booted, or -1 if unknown.
    """

    pid: int
    ppid: int = -1
    pgrp: int = -1
    session: int = -1
    state: str = ""
    start: int = -1
    is_alive: bool = True

    @property
    def identity(self) -> Identity:
        """What no other process has: number and start."""
        return self.pid, self.start

    def send_signal(self, signum: signal.Signals, proc: str = PROC) -> bool:
        """Send a signal to this very process, never to one that has got its number since.

        Returns:
            Whether it was sent; False if the process is gone.

        Raises:
            PermissionError: it runs as another user.
        """
        pidfd = open_pidfd(self.pid)
        try:
            now = read_process(self.pid, proc)
            if now is None or now.start != self.start:
                return False
            if pidfd >= 0:
                signal.pidfd_send_signal(pidfd, signum)
            else:
                os.kill(self.pid, signum)
        except ProcessLookupError:
            return False
        finally:
            if pidfd >= 0:
                os.close(pidfd)
        return True


def has_table(proc: str = PROC) -> bool:
    """Whether the system tells its processes at all."""
    return os.path.exists(f"{proc}/self/stat") or os.path.exists(f"{proc}/{os.getpid()}/stat")


def read_stat(pid: int | str, proc: str = PROC) -> list[bytes]:
    """What `stat` in /proc shows of a process: its fields from the state on, the first being 0.

    Raises:
        OSError: it is gone, or cannot be read.
    """
    fd = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, _STAT_BYTES)
    finally:
        os.close(fd)
    # The name in parentheses may contain anything, parentheses and spaces too.
    return data.rpartition(b")")[2].split()


def read_process(pid: int, proc: str = PROC) -> Process | None:
    """One process; None if it is gone or cannot be read."""
    try:
        fields = read_stat(pid, proc)
        state = fields[0].decode()
        return Process(
            pid,
            ppid=int(fields[1]),
            pgrp=int(fields[2]),
            session=int(fields[3]),
            state=state,
            start=int(fields[19]),
            # A process whose first thread has ended looks like a zombie while others run.
            is_alive=state not in _ENDED or (state == "Z" and int(fields[17]) > 1),
        )
    except (OSError, IndexError, ValueError):
        return None


def find_identity(pid: int, proc: str = PROC) -> Identity:
    """The number of a process, and its start; -1 if that cannot be read."""
    process = read_process(pid, proc)
    return (pid, -1) if process is None else process.identity


def read_state(pid: int, proc: str = PROC) -> str:
    """The state letter of a process (`D` sleeps uninterruptibly); empty if it is gone."""
    process = read_process(pid, proc)
    return "" if process is None else process.state


def read_table(proc: str = PROC) -> dict[int, Process]:
    """Every process by its number, zombies too; empty where there is no /proc.

    The table is read process by process, so that one that is started meanwhile may be missing.
    """
    processes = (read_process(pid, proc) for pid in list_processes(proc))
    return {process.pid: process for process in processes if process is not None}


def list_processes(proc: str = PROC) -> set[int]:
    """The number of every process, zombies too; empty where there is no /proc."""
    try:
        return {int(name) for name in os.listdir(proc) if name.isdigit()}
    except OSError:
        return set()


def read_children(proc: str = PROC) -> set[int] | None:
    """The numbers of this process's children; None if the kernel does not list them.

    Each thread has its own. When one ends, they become those of another thread, which may have been
    asked already: then all are asked again. None as well if threads end all the time.
    """
    folder = f"{proc}/self/task"
    for _ in range(_MOST_READS):
        children: set[int] = set()
        task = ""
        try:
            tasks = os.listdir(folder)
            for task in tasks:
                with open(f"{folder}/{task}/children", "rb") as file:
                    children.update(map(int, file.read().split()))
            if len(tasks) == 1 or set(tasks).issubset(os.listdir(folder)):
                return children
        except (FileNotFoundError, ProcessLookupError):
            if os.path.exists(f"{folder}/{task}") or not os.path.exists(folder):
                return None
        except (OSError, ValueError):
            return None
    return None


def ancestors_of(table: Mapping[int, Process], pid: int) -> set[int]:
    """A process, its parent, and so on, by number."""
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].ppid
    return found


def children_by_parent(table: Mapping[int, Process]) -> dict[int, list[int]]:
    """The numbers of the children of each process that has any."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process.pid)
    return children


def descend(
    owners: dict[int, int], children: Mapping[int, list[int]], excluded: Collection[int]
) -> None:
    """Give the descendants of what is owned to the same owners."""
    open_ends = list(owners)
    while open_ends:
        pid = open_ends.pop()
        for child in children.get(pid, ()):
            if child not in owners and child not in excluded:
                owners[child] = owners[pid]
                open_ends.append(child)
