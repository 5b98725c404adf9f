"""A worker's session: whom signals reach, and what is left when the worker itself is gone."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from typing import TYPE_CHECKING, Protocol

from plaunch.process.kernel.processes import PROC, read_process

if TYPE_CHECKING:
    from collections.abc import Collection

    from plaunch.process.kernel.handle import WorkerProcess
    from plaunch.process.kernel.processes import Process

_log = logging.getLogger("plaunch")

_SHELLS = frozenset({"ash", "bash", "busybox", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"})


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
        self._asked: set[tuple[int, int]] = set()  # who has had the soft signal: pid and start

    def ask_to_end(self, signum: signal.Signals) -> bool:
        """Send the soft signal, and continue what was suspended: to the worker itself.

        Its children would spoil its last work by ending first. But a worker that only waits for a
        child, as a shell does, passes nothing on: then its whole session gets the signal.

        Returns:
            Whether the worker only waits for its children.
        """
        found: list[Process] = []
        if self._waits_for_child():
            found = [p for p in self._kin.look(self._rank) if p.session == self.pid]
        is_wrapper = len(found) > 1
        if is_wrapper:
            self._asked.update((process.pid, process.start) for process in found)
        for each in (signum, signal.SIGCONT):  # who is suspended acts on nothing else
            if is_wrapper:
                self._signal_found(found, each)
            else:
                self._signal_leader(each)
        return is_wrapper

    def ask_rest_to_end(self, signum: signal.Signals) -> None:
        """Send the soft signal to what is alive of a worker that has ended, once to each."""
        found = [
            process
            for process in self._kin.left_behind(self._rank)
            if (process.pid, process.start) not in self._asked
        ]
        self._asked.update((process.pid, process.start) for process in found)
        for each in (signum, signal.SIGCONT):
            self._signal_found(found, each)

    def kill(self) -> set[int]:
        """Send SIGKILL to the worker and to everything that it started.

        Returns:
            Those that this user may not signal: the process ids.
        """
        if self._process.poll() is not None or not self._process.owns_pid():
            # Reaped or about to be, so that the number of the group may go to a stranger.
            return self._signal_found(self._kin.left_behind(self._rank), signal.SIGKILL)
        # Found before their parents are gone, which tell whose they are.
        found = self._kin.look(self._rank)
        # Forked a moment ago, a worker does not lead its group yet; and whether itself may be
        # signalled is not told by its group, which is content with one that may.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        refused = self._signal_leader(signal.SIGKILL)
        others = [process for process in found if process.pgrp != self.pid]
        return refused | self._signal_found(others, signal.SIGKILL)

    def survivors(self) -> list[int]:
        """What is alive of a worker that has ended itself: the process ids."""
        self._process.reap()  # else its group has a member in any case
        return [process.pid for process in self._kin.left_behind(self._rank)]

    def _signal_leader(self, signum: signal.Signals) -> set[int]:
        try:
            self._process.send_signal(signum)
        except PermissionError:
            self._warn_not_permitted(self.pid, signum)
            return {self.pid}
        return set()

    def _waits_for_child(self) -> bool:
        """Whether the worker is a shell, or its first thread only waits for a child to end."""
        if _first_line(f"{self._proc}/{self.pid}/comm") in _SHELLS:
            return True
        return _first_line(f"{self._proc}/{self.pid}/wchan").startswith("do_wait")

    def _signal_found(self, processes: Collection[Process], signum: signal.Signals) -> set[int]:
        refused = self._kin.signal(processes, signum)
        for process in refused:
            self._warn_not_permitted(process.pid, signum)
        return {process.pid for process in refused}

    def _warn_not_permitted(self, pid: int, signum: signal.Signals) -> None:
        _log.warning("may not send %s to %s", signum.name, describe_process(pid, self._proc))


def read_state(pid: int, proc: str = PROC) -> tuple[str, int]:
    """The state letter of a process as in /proc (`D` sleeps uninterruptibly), and its group.

    An empty string and -1 if the process is gone or the system has no /proc.
    """
    process = read_process(pid, proc)
    return ("", -1) if process is None else (process.state, process.pgrp)


def may_signal(pid: int) -> bool:
    """Whether this user may signal a process; also if it is gone."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True


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
