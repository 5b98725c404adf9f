"""A worker's session: whom signals reach, and what is left when the worker itself is gone."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator

    from plaunch.process.child import WorkerProcess

_log = logging.getLogger("plaunch")

_PROC = "/proc"


class WorkerSession:
    """A worker that leads its own session and process group, with everything in the group.

    This is the one place that knows what belongs to a worker. Processes that made a session of
    their own are not found here.
    """

    def __init__(self, process: WorkerProcess, proc: str = _PROC) -> None:
        self.pid = process.pid
        self._process = process
        self._proc = proc

    def signal_leader(self, signum: signal.Signals) -> None:
        """Send a signal to the worker itself, if it is still there."""
        try:
            os.kill(self.pid, signum)
        except ProcessLookupError:
            pass  # it has ended by itself meanwhile
        except PermissionError:
            self._warn_not_permitted(signum)

    def signal_all(self, signum: signal.Signals) -> None:
        """Send a signal to the worker and to every process of its group."""
        try:
            os.killpg(self.pid, signum)
        except ProcessLookupError:
            # Forked a moment ago, a worker does not lead its group yet.
            if self._process.poll() is None:
                self.signal_leader(signum)
        except PermissionError:
            self._warn_not_permitted(signum)

    def survivors(self) -> list[int]:
        """What is alive in the group of a worker that has ended itself: the process ids."""
        self._process.reap()  # else the group has a member in any case
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return []
        except PermissionError:
            pass  # a member runs as another user, and counts
        if not os.path.isdir(self._proc):
            return [self.pid]
        members = sorted(pid for pid, pgrp in self._living() if pgrp == self.pid)
        # The group's number stays taken as long as it has a member, so that a living process with
        # this very number means that the group died out and the number went to a stranger.
        return [] if self.pid in members else members

    def _warn_not_permitted(self, signum: signal.Signals) -> None:
        _log.warning("may not send %s to %s", signum.name, describe_process(self.pid, self._proc))

    def _living(self) -> Iterator[tuple[int, int]]:
        """All processes of the system and their groups, without zombies."""
        for name in os.listdir(self._proc):
            if name.isdigit():
                state, pgrp = read_state(int(name), self._proc)
                if state not in ("", "Z", "X"):
                    yield int(name), pgrp


def read_state(pid: int, proc: str = _PROC) -> tuple[str, int]:
    """The state letter of a process as in /proc (`D` sleeps uninterruptibly), and its group.

    An empty string and -1 if the process is gone or the system has no /proc.
    """
    try:
        with open(f"{proc}/{pid}/stat", "rb") as stat:
            # The name in parentheses may contain anything, parentheses and spaces too.
            fields = stat.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[2])
    except (OSError, IndexError, ValueError):
        return "", -1


def describe_process(pid: int, proc: str = _PROC) -> str:
    """One process in words: its pid, its state, and what it waits in as far as the kernel says."""
    state, _ = read_state(pid, proc)
    if not state:
        return f"pid {pid} (state unknown)"
    try:
        with open(f"{proc}/{pid}/wchan") as wchan:
            place = wchan.read().strip()
    except OSError:
        place = ""
    waits = f", waits in {place}" if place not in ("", "0") else ""
    return f"pid {pid} (state {state}{waits})"
