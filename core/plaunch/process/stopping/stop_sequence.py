"""The steps in which workers are stopped, and the signals to each worker and what it started.

First the soft signal to the workers, which lead their sessions; after the grace, SIGKILL to
everything. The orphans of a worker that has ended are stopped soon after it. They have the whole
grace if the worker was only a wrapper, such as a shell, that waited for a program.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import time
from typing import TYPE_CHECKING

from plaunch.durations import describe_end
from plaunch.process.proc import describe_process, is_waiting_for_child
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from plaunch.process.children import ProcessHandle
    from plaunch.process.proc import Identity, Process
    from plaunch.process.stopping.job import Job
    from plaunch.process.watches import HeldProcesses

_log = logging.getLogger("plaunch")

_ORPHAN_GRACE = 0.5  # seconds for the orphans of a leader, between soft signal and SIGKILL
KILL_WAIT = 10.0  # seconds for a process to end after SIGKILL; freeing much memory takes time
_NOTICE_AFTER = 1.0  # seconds after which a warning names the workers that still run
_SHORTEST_POLL = 0.005  # seconds between two polls of processes that are not children
_LONGEST_POLL = 0.1


class WorkerSession:
    """A worker, which leads its own session and process group, and everything that it started.

    The group gets signals as a whole; processes that have left it are found by the job.

    Args:
        handle: the worker.
        rank: its local rank.
        job: finds its processes.
        holds: knows since when workers have been suspended.
    """

    def __init__(self, handle: ProcessHandle, rank: int, job: Job, holds: HeldProcesses) -> None:
        self.pid = handle.pid
        self._holds = holds
        self._handle = handle
        self._rank = rank
        self._job = job
        self._asked: set[Identity] = set()  # the processes that have had the soft signal

    def ask_to_end(self, signum: signal.Signals) -> bool:
        """Send the soft signal to the worker only, and resume it if it is suspended.

        If its children ended first, its cleanup might fail. But a worker that only waits for a
        child, as a shell does, does not forward signals: then its whole session gets the signal.

        Returns:
            Whether the worker only waits for its children.
        """
        found: list[Process] = []
        if is_waiting_for_child(self.pid):
            found = [p for p in self._job.processes(self._rank) if p.session == self.pid]
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
        """Describe what keeps the worker from handling signals, and since when; may be empty."""
        return str(self._holds.sample([self.pid]).get(self.pid, ""))

    def kill(self) -> set[int]:
        """Send SIGKILL to the worker and to everything that it started.

        Returns:
            The ids of the processes that this user may not signal.
        """
        if self._handle.poll() is not None or not self._handle.owns_pid():
            # It is reaped or about to be: the number of its group may belong to others.
            return self._signal_found(self._job.orphans(self._rank), signal.SIGKILL)
        # Found before their parents are gone, by which their owner is known.
        found = self._job.processes(self._rank)
        # A worker that was just forked does not lead its group yet. And killpg succeeds if any
        # member may be signalled, so that it does not show whether the worker may.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        refused = self._signal_leader(signal.SIGKILL)
        others = [process for process in found if process.pgrp != self.pid]
        return refused | self._signal_found(others, signal.SIGKILL)

    def survivors(self) -> list[int]:
        """Return the ids of the orphans of a worker that has ended."""
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
            _log.warning("may not send %s to %s", signum.name, describe_process(pid))
        return refused


@plain_dataclass
class StopStep(Value):
    """One step of a stop.

    Args:
        step: `signalled` (the soft signal was sent), `waiting` (some workers still run), `killed`
            (SIGKILL was sent), `gone` (no worker runs, or the rest was given up).
        signum: the soft signal; SIGKILL with `killed`.
        ranks: the local ranks of the step; with `gone`, all that were to be stopped.
        seconds: since the stop began.
    """

    step: str
    signum: signal.Signals
    ranks: tuple[int, ...]
    seconds: float


class StopSequence:
    """Stops workers, and the orphans of those that have ended.

    Call `step` with the local ranks that run until it returns None. It sends the signals that are
    due, and never waits.

    Args:
        sessions: the workers by local rank, including those that have ended.
        name: what the workers are, for the log.
        death_sig: the soft signal.
        grace: seconds between soft signal and SIGKILL.
        abandoned: local ranks that get SIGKILL at once, and count as unkillable if they still run
            when all others are gone.
        kill_wait: seconds after SIGKILL after which a process counts as unkillable.
        clock: seconds that never go back.
        on_step: called with each step; it must not block.
    """

    def __init__(
        self,
        sessions: Mapping[int, WorkerSession],
        *,
        name: str,
        death_sig: signal.Signals,
        grace: float,
        abandoned: Collection[int] = (),
        kill_wait: float = KILL_WAIT,
        clock: Callable[[], float] = time.monotonic,
        on_step: Callable[[StopStep], None] | None = None,
    ) -> None:
        self.stuck: dict[int, list[int]] = {}
        self._on_step = on_step
        self._stopped: tuple[int, ...] = ()  # the local ranks that were alive when it began
        self._sessions = sessions
        self._name = name
        self._death_sig = death_sig
        self._grace = grace
        self._abandoned = frozenset(abandoned)
        self._kill_wait = kill_wait
        self._clock = clock
        self._is_escalated = death_sig is signal.SIGKILL
        self._was_escalated = False  # before the first step, so that no soft signal was sent
        self._began_at: float | None = None
        self._notice_at = self._kill_at = self._give_up_at = math.inf
        self._orphans: dict[int, _Orphans] = {}
        self._wrappers: set[int] = set()  # workers that only wait for a child
        self._killed: set[int] = set()
        self._cleared: set[int] = set()

    def escalate(self) -> None:
        """Send SIGKILL in the next step; may be called in a signal handler."""
        self._is_escalated = True

    def step(self, live: Collection[int]) -> float | None:
        """Do what is due; return the seconds until the next step, or None at the end.

        Call it earlier after the exit of a worker, and after `escalate`. At the end, `stuck` has
        the processes that survived SIGKILL, by local rank.
        """
        now = self._clock()
        if self._began_at is None:
            self._began_at = now
            self._begin(live, now)
        awaited = [rank for rank in live if rank not in self._abandoned | self._cleared]
        if awaited:
            self._step_leaders(awaited, now, now - self._began_at)
        for rank in self._sessions:
            if rank not in live and rank not in self._cleared:
                self._step_orphans(rank, now)
        not_awaited = self._abandoned & {*live}
        if len(self._cleared) + len(not_awaited) == len(self._sessions):
            for rank in not_awaited:
                self._give_up(rank)
        if len(self._cleared) == len(self._sessions):
            self._report("gone", self._death_sig, self._stopped)
            self._stopped = ()
            return None
        if now >= self._notice_at:
            self._notice(awaited, now)
        due = [left.due_at for left in self._orphans.values()]
        due.append(self._notice_at)
        if awaited:
            due.append(self._kill_at if self._give_up_at == math.inf else self._give_up_at)
        return max(min(due) - now, 0.0)

    def _begin(self, live: Collection[int], now: float) -> None:
        self._kill_at = now + self._grace
        self._notice_at = now + min(_NOTICE_AFTER, self._grace / 2)
        self._stopped = tuple(sorted(live))
        for rank in self._abandoned & {*live}:
            self._kill(rank)
        self._was_escalated = self._is_escalated
        if self._was_escalated:
            return
        awaited = [rank for rank in live if rank not in self._abandoned]
        for rank in awaited:
            session = self._sessions[rank]
            _log.debug("%s %d: %s to pid %d", self._name, rank, self._death_sig.name, session.pid)
            if session.ask_to_end(self._death_sig):
                self._wrappers.add(rank)
        self._report("signalled", self._death_sig, awaited)

    def _step_leaders(self, live: Collection[int], now: float, elapsed: float) -> None:
        if now >= self._give_up_at:
            for rank in live:
                self._give_up(rank)
        elif self._give_up_at == math.inf and (self._is_escalated or now >= self._kill_at):
            if not self._was_escalated:
                _log.warning(
                    "%s: %s did not end within %.3g s of %s; sending SIGKILL",
                    self._name,
                    _name(live),
                    elapsed,
                    self._death_sig.name,
                )
            elif self._death_sig is not signal.SIGKILL:
                _log.warning("%s: sending SIGKILL to %s at once", self._name, _name(live))
            for rank in live:
                if self._sessions[rank].pid in self._kill(rank):
                    self._give_up(rank)  # it may not be killed, and did not end by itself in time
            self._report("killed", signal.SIGKILL, live)
            self._notice_at = math.inf
            self._give_up_at = now + self._kill_wait

    def _notice(self, awaited: Collection[int], now: float) -> None:
        """Log once which workers and programs still run."""
        self._notice_at = math.inf
        left = sorted(self._wrappers & {*self._orphans})
        if not awaited and not left:
            return
        who = _name(awaited) if awaited else ""
        if left:
            who += f"{' and ' if who else ''}processes that {_name(left)} started"
        held = [(rank, self._sessions[rank].describe_hold()) for rank in sorted(awaited)]
        if why := ", ".join(f"{_name([rank])} is {how}" for rank, how in held if how):
            who += f" ({why})"
        _log.warning(
            "%s: waiting for %s to end after %s; SIGKILL %s",
            self._name,
            who,
            self._death_sig.name,
            describe_end(max(self._kill_at - now, 0.0)),
        )
        self._report("waiting", self._death_sig, awaited or left)

    def _step_orphans(self, rank: int, now: float) -> None:
        session = self._sessions[rank]
        pids = session.survivors()
        if not pids:
            self._orphans.pop(rank, None)
            self._cleared.add(rank)
            return
        left = self._orphans.get(rank)
        if rank in self._wrappers and not session.runs_program():
            self._wrappers.remove(rank)
            if left is not None:
                left.kill_at = min(left.kill_at, now + _ORPHAN_GRACE)
        if left is None:
            left = self._orphans[rank] = _Orphans(self._kill_orphans_at(rank, now))
            _log.info("%s %d: ending its orphans: %s", self._name, rank, _name(pids, "pid"))
        if now >= left.give_up_at or left.refused.issuperset(pids):
            self.stuck[rank] = pids
            self._orphans.pop(rank)
            self._cleared.add(rank)
            return
        is_soft = not self._is_escalated and now < left.kill_at
        if is_soft:
            session.ask_rest_to_end(self._death_sig)
        elif not left.killed.issuperset(pids):
            left.refused.update(session.kill())  # again for processes that have come since
            left.killed.update(pids)
            left.give_up_at = min(left.give_up_at, now + self._kill_wait)
            left.poll_after = _SHORTEST_POLL
        # Their exits wake no poller, so they are polled, less often as time passes.
        left.poll_after = min(left.poll_after * 1.5, _LONGEST_POLL)
        left.due_at = min(now + left.poll_after, left.kill_at if is_soft else left.give_up_at)

    def _kill_orphans_at(self, rank: int, now: float) -> float:
        """Return when the orphans of a worker get SIGKILL.

        A shell that dies of the soft signal leaves the program that it ran, which does the work and
        has the rest of the grace.
        """
        if rank in self._killed:
            return now
        return self._kill_at if rank in self._wrappers else now + _ORPHAN_GRACE

    def _report(self, step: str, signum: signal.Signals, ranks: Collection[int]) -> None:
        if self._on_step is not None and ranks and self._began_at is not None:
            elapsed = self._clock() - self._began_at
            self._on_step(StopStep(step, signum, tuple(sorted(ranks)), elapsed))

    def _kill(self, rank: int) -> Collection[int]:
        self._killed.add(rank)
        return self._sessions[rank].kill()

    def _give_up(self, rank: int) -> None:
        self.stuck[rank] = [self._sessions[rank].pid]
        self._cleared.add(rank)


class _Orphans:
    """The deadlines of the orphans of one worker."""

    def __init__(self, kill_at: float) -> None:
        self.kill_at = kill_at
        self.give_up_at = math.inf
        self.killed: set[int] = set()
        self.refused: set[int] = set()
        self.poll_after = _SHORTEST_POLL
        self.due_at = -math.inf


def _name(numbers: Iterable[int], noun: str = "local rank") -> str:
    from plaunch.numbers import name_ranks  # only in warnings

    return name_ranks(numbers, noun)
