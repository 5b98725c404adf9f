"""The table of processes in /proc, and signals to and waits for exactly one of them."""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING, NamedTuple

from plaunch.process.proc import PROC, list_numbers, read_stat

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Identity = tuple[int, int]  # pid and start time

_ENDED = ("Z", "X", "x")


class Process(NamedTuple):
    """One process as it was when the table was read.

    A pid is reused once its process is gone; pid and `start` together are unique. `start` is in
    clock ticks since the system was booted, or -1 if unknown.
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
        """Pid and start time, which no other process has."""
        return self.pid, self.start

    def send_signal(self, signum: signal.Signals, proc: str = PROC) -> bool:
        """Send a signal to this process, never to another one that has reused its pid.

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


def open_pidfd(pid: int) -> int:
    """A descriptor of a process, which is readable when the process has ended.

    -1 on old kernels, in containers that forbid it, without free descriptors, for a process that is
    gone, and with `PLAUNCH_NO_PIDFD=1` in the environment.
    """
    if os.environ.get("PLAUNCH_NO_PIDFD", "0") not in ("", "0") or not hasattr(os, "pidfd_open"):
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def wait_for_end(pidfd: int, seconds: float) -> None:
    """Wait at most so long for the end of the process of a pidfd; does not wait for -1."""
    if pidfd >= 0:
        from plaunch.durations import milliseconds  # not in the guard

        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.poll(milliseconds(seconds))


def has_table(proc: str = PROC) -> bool:
    """Whether there is a /proc that lists processes."""
    return os.path.exists(f"{proc}/self/stat") or os.path.exists(f"{proc}/{os.getpid()}/stat")


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
            # If only the first thread has ended, the process looks like a zombie.
            is_alive=state not in _ENDED or (state == "Z" and int(fields[17]) > 1),
        )
    except (IndexError, ValueError):
        return None


def find_identity(pid: int, proc: str = PROC) -> Identity:
    """The pid of a process, and its start time; -1 if that cannot be read."""
    process = read_process(pid, proc)
    return (pid, -1) if process is None else process.identity


def read_table(proc: str = PROC) -> dict[int, Process]:
    """All processes by pid, with zombies; empty without /proc.

    It is read process by process, so that a process that starts meanwhile may be missing.
    """
    processes = (read_process(pid, proc) for pid in list_numbers(proc=proc))
    return {process.pid: process for process in processes if process is not None}


def ancestors_of(table: Mapping[int, Process], pid: int) -> set[int]:
    """The pids of a process, its parent, and so on."""
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].ppid
    return found


def children_by_parent(table: Mapping[int, Process]) -> dict[int, list[int]]:
    """The pids of the children of each process that has any."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process.pid)
    return children


def descend(
    owners: dict[int, int], children: Mapping[int, list[int]], excluded: Collection[int]
) -> None:
    """Add the descendants of the processes in `owners`, with the same owner."""
    open_ends = list(owners)
    while open_ends:
        pid = open_ends.pop()
        for child in children.get(pid, ()):
            if child not in owners and child not in excluded:
                owners[child] = owners[pid]
                open_ends.append(child)
