"""A worker's session: the reach of signals, and what is left when the worker itself has ended."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from typing import TYPE_CHECKING

from plaunch.process.kernel.details import describe_process, is_waiting_for_child
from plaunch.process.kernel.processes import PROC

if TYPE_CHECKING:
    from collections.abc import Collection

    from plaunch.process.kernel.handle import ProcessHandle
    from plaunch.process.kernel.holds import HoldWatch
    from plaunch.process.kernel.processes import Identity, Process
    from plaunch.process.stopping.job import Job

_log = logging.getLogger("plaunch")


class WorkerSession:
    """A worker that leads its own session and process group, with everything that it started.

    The group gets signals as one; what has left the group is found by its job.
    """

    def __init__(
        self,
        handle: ProcessHandle,
        rank: int,
        job: Job,
        proc: str = PROC,
        *,
        holds: HoldWatch | None = None,
    ) -> None:
        self.pid = handle.pid
        self._holds = holds
        self._handle = handle
        self._rank = rank
        self._job = job
        self._proc = proc
        self._asked: set[Identity] = set()  # who has had the soft signal

    def ask_to_end(self, signum: signal.Signals) -> bool:
        """Send the soft signal, and continue what was suspended: to the worker itself.

        Its children would spoil its last work by ending first. But a worker that only waits for a
        child, as a shell does, passes nothing on: then its whole session gets the signal.

        Returns:
            Whether the worker only waits for its children.
        """
        found: list[Process] = []
        if is_waiting_for_child(self.pid, self._proc):
            found = [p for p in self._job.look(self._rank) if p.session == self.pid]
        is_wrapper = len(found) > 1
        if is_wrapper:
            self._asked.update(process.identity for process in found)
        for each in (signum, signal.SIGCONT):  # who is suspended acts on nothing else
            if is_wrapper:
                self._signal_found(found, each)
            else:
                self._signal_leader(each)
        return is_wrapper

    def ask_rest_to_end(self, signum: signal.Signals) -> None:
        """Send the soft signal to what is alive of a worker that has ended, once to each."""
        orphans = self._job.orphans(self._rank)
        found = [process for process in orphans if process.identity not in self._asked]
        self._asked.update(process.identity for process in found)
        for each in (signum, signal.SIGCONT):
            self._signal_found(found, each)

    def runs_program(self) -> bool:
        """Whether anything is alive of the session of a worker that has ended itself.

        What such a worker waited for is in its session; daemons have left that.
        """
        return any(process.session == self.pid for process in self._job.orphans(self._rank))

    def describe_hold(self) -> str:
        """What keeps the worker from acting on a signal, and since when; empty for nothing."""
        held = {} if self._holds is None else self._holds.look([self.pid])
        return str(held.get(self.pid, ""))

    def kill(self) -> set[int]:
        """Send SIGKILL to the worker and to everything that it started.

        Returns:
            Those that this user may not signal: the process ids.
        """
        if self._handle.poll() is not None or not self._handle.owns_pid():
            # Reaped or about to be, so that the number of the group may go to a stranger.
            return self._signal_found(self._job.orphans(self._rank), signal.SIGKILL)
        # Found before their parents are gone, which tell whose they are.
        found = self._job.look(self._rank)
        # Forked a moment ago, a worker does not lead its group yet; and whether itself may be
        # signalled is not told by its group, which is content with one that may.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        refused = self._signal_leader(signal.SIGKILL)
        others = [process for process in found if process.pgrp != self.pid]
        return refused | self._signal_found(others, signal.SIGKILL)

    def survivors(self) -> list[int]:
        """What is alive of a worker that has ended itself: the process ids."""
        self._handle.reap()  # else its group has a member in any case
        return [process.pid for process in self._job.orphans(self._rank)]

    def _signal_leader(self, signum: signal.Signals) -> set[int]:
        try:
            self._handle.send_signal(signum)
        except PermissionError:
            return self._warn_of({self.pid}, signum)
        return set()

    def _signal_found(self, processes: Collection[Process], signum: signal.Signals) -> set[int]:
        refused = self._job.signal(self._rank, processes, signum)
        return self._warn_of({process.pid for process in refused}, signum)

    def _warn_of(self, refused: set[int], signum: signal.Signals) -> set[int]:
        for pid in sorted(refused):
            _log.warning("may not send %s to %s", signum.name, describe_process(pid, self._proc))
        return refused
