"""Sends signals to a worker, to its session, and to the orphans that it has left."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from typing import TYPE_CHECKING

from plaunch.process.proc import PROC, describe_process, is_waiting_for_child

if TYPE_CHECKING:
    from collections.abc import Collection

    from plaunch.process.children import ProcessHandle
    from plaunch.process.held import HoldWatch
    from plaunch.process.processes import Identity, Process
    from plaunch.process.stopping.job import Job

_log = logging.getLogger("plaunch")


class WorkerSession:
    """A worker, which leads its own session and process group, and everything that it started.

    The group gets signals as a whole; processes that have left it are found by the job.

    Args:
        handle: the worker.
        rank: its local rank.
        job: finds its processes.
        proc: the folder of processes.
        holds: knows since when workers have been suspended.
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
        self._asked: set[Identity] = set()  # the processes that have had the soft signal

    def ask_to_end(self, signum: signal.Signals) -> bool:
        """Send the soft signal to the worker only, and resume it if it is suspended.

        If its children ended first, its cleanup might fail. But a worker that only waits for a
        child, as a shell does, does not forward signals: then its whole session gets the signal.

        Returns:
            Whether the worker only waits for its children.
        """
        found: list[Process] = []
        if is_waiting_for_child(self.pid, self._proc):
            found = [p for p in self._job.look(self._rank) if p.session == self.pid]
        is_wrapper = len(found) > 1
        if is_wrapper:
            self._asked.update(process.identity for process in found)
        for each in (signum, signal.SIGCONT):  # a suspended process handles no other signal
            if is_wrapper:
                self._signal_found(found, each)
            else:
                self._signal_leader(each)
        return is_wrapper

    def ask_rest_to_end(self, signum: signal.Signals) -> None:
        """Send the soft signal to the orphans of a worker that has ended, once to each."""
        orphans = self._job.orphans(self._rank)
        found = [process for process in orphans if process.identity not in self._asked]
        self._asked.update(process.identity for process in found)
        for each in (signum, signal.SIGCONT):
            self._signal_found(found, each)

    def runs_program(self) -> bool:
        """Whether the session of a worker that has ended still has processes.

        A program that the worker waited for is in its session; daemons have left it.
        """
        return any(process.session == self.pid for process in self._job.orphans(self._rank))

    def describe_hold(self) -> str:
        """What keeps the worker from handling signals, and since when; empty if nothing does."""
        held = {} if self._holds is None else self._holds.look([self.pid])
        return str(held.get(self.pid, ""))

    def kill(self) -> set[int]:
        """Send SIGKILL to the worker and to everything that it started.

        Returns:
            The ids of the processes that this user may not signal.
        """
        if self._handle.poll() is not None or not self._handle.owns_pid():
            # It is reaped or about to be: the number of its group may belong to others.
            return self._signal_found(self._job.orphans(self._rank), signal.SIGKILL)
        # Found before their parents are gone, by which their owner is known.
        found = self._job.look(self._rank)
        # A worker that was just forked does not lead its group yet. And killpg succeeds if any
        # member may be signalled, so that it does not show whether the worker may.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        refused = self._signal_leader(signal.SIGKILL)
        others = [process for process in found if process.pgrp != self.pid]
        return refused | self._signal_found(others, signal.SIGKILL)

    def survivors(self) -> list[int]:
        """The ids of the orphans of a worker that has ended."""
        self._handle.reap()  # a zombie would count as a member of its group
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
