"""A worker's session: whom signals reach, and what is left when the worker itself is gone."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Protocol

from plaunch.process.reaping.table import PROC, read_process

if TYPE_CHECKING:
    import signal
    from collections.abc import Collection

    from plaunch.process.child import WorkerProcess
    from plaunch.process.reaping.table import Process

_log = logging.getLogger("plaunch")


class Kin(Protocol):
    """Finds what belongs to the workers of one start, by local rank."""

    def look(self, rank: int) -> list[Process]:
        """All living processes of one local rank, the worker included."""

    def left_behind(self, rank: int) -> list[Process]:
        """What is alive of a worker that has ended and was reaped."""

    def signal(self, processes: Collection[Process], signum: signal.Signals) -> list[Process]:
        """Send a signal; returns those that this user may not signal."""


class WorkerSession:
    """A worker that leads its own session and process group, with everything that it started.

    The group gets signals as one; what has left the group is found by its kin.
    """

    def __init__(self, process: WorkerProcess, rank: int, kin: Kin, proc: str = PROC) -> None:
        self.pid = process.pid
        self._process = process
        self._rank = rank
        self._kin = kin
        self._proc = proc

    def signal_leader(self, signum: signal.Signals) -> None:
        """Send a signal to the worker itself, if it is still there."""
        try:
            os.kill(self.pid, signum)
        except ProcessLookupError:
            pass  # it has ended by itself meanwhile
        except PermissionError:
            self._warn_not_permitted(self.pid, signum)

    def signal_all(self, signum: signal.Signals) -> None:
        """Send a signal to the worker and to everything that it started."""
        if self._process.poll() is not None:
            # Reaped or about to be, so that the number of the group may go to a stranger.
            self._signal_found(self._kin.left_behind(self._rank), signum)
            return
        # Found before their parents are gone, which tell whose they are.
        found = self._kin.look(self._rank)
        try:
            os.killpg(self.pid, signum)
        except ProcessLookupError:
            # Forked a moment ago, a worker does not lead its group yet.
            self.signal_leader(signum)
        except PermissionError:
            self._warn_not_permitted(self.pid, signum)
        self._signal_found([process for process in found if process.pgrp != self.pid], signum)

    def survivors(self) -> list[int]:
        """What is alive of a worker that has ended itself: the process ids."""
        self._process.reap()  # else its group has a member in any case
        return [process.pid for process in self._kin.left_behind(self._rank)]

    def _signal_found(self, processes: Collection[Process], signum: signal.Signals) -> None:
        for process in self._kin.signal(processes, signum):
            self._warn_not_permitted(process.pid, signum)

    def _warn_not_permitted(self, pid: int, signum: signal.Signals) -> None:
        _log.warning("may not send %s to %s", signum.name, describe_process(pid, self._proc))


def read_state(pid: int, proc: str = PROC) -> tuple[str, int]:
    """The state letter of a process as in /proc (`D` sleeps uninterruptibly), and its group.

    An empty string and -1 if the process is gone or the system has no /proc.
    """
    process = read_process(pid, proc)
    return ("", -1) if process is None else (process.state, process.pgrp)


def describe_process(pid: int, proc: str = PROC) -> str:
    """One process in words: its pid, its state, and what it waits in as far as the kernel says."""
    state, _ = read_state(pid, proc)
    if not state:
        return f"pid {pid} (state unknown)"
    place = _waiting_place(pid, proc)
    return f"pid {pid} (state {state}{f', waits in {place}' if place else ''})"


def _waiting_place(pid: int, proc: str) -> str:
    """The function of the kernel that a process sleeps in; empty if the kernel does not say."""
    place = _first_line(f"{proc}/{pid}/wchan")
    if place not in ("", "0"):
        return place
    # Lines are "[<0>] io_schedule+0x46/0x80"; only root may read them.
    return _first_line(f"{proc}/{pid}/stack").rpartition(" ")[2].partition("+")[0]


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""
