"""The other nodes of the job: what the rendezvous reports, and what the agent reports to it."""

from __future__ import annotations

import logging
import math
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from plaunch.agent import states
from plaunch.agent.messages import (
    StopReason,
    describe_change,
    describe_request,
    stop_reason_of,
)
from plaunch.agent.worker import LAUNCHER, RunResult, WorkerState, launcher_failure
from plaunch.errors import (
    PlaunchError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from plaunch.rendezvous.api import ENDING_DELAY, ChangeKind
from plaunch.rendezvous.job import JobOutcome
from plaunch.texts import join_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from plaunch.agent.notifier import Notifier
    from plaunch.agent.poller import Poller
    from plaunch.agent.signals import ForwardedSignals
    from plaunch.process.failure import ProcessFailure
    from plaunch.rendezvous.api import MembershipChange
    from plaunch.rendezvous.job import JobRendezvous

    class FindOwnFailures(Protocol):
        """Checks, for a moment, whether own workers have failed by themselves."""

        def __call__(self, *, is_loss: bool) -> list[states.AgentEvent]:
            """The event of their failure, or nothing; `is_loss` is whether a node was lost."""


logger = logging.getLogger("plaunch")

_LOG_AFTER = 10.0  # seconds after which a wait for other nodes is logged


class Peers:
    """The other nodes of a job, for the loop of one agent.

    Args:
        job: the rendezvous.
        notifier: is notified of changes.
        poller: waits, and is woken.
        forwarded: passes on the signals that another node has received.
        interval: seconds between two calls of `check` if nothing happens.
        patience: seconds to wait for the other nodes after success, `exit_barrier_timeout`.
        note_ending: called with the seconds since the workers of half of the nodes have succeeded.
    """

    def __init__(
        self,
        job: JobRendezvous,
        notifier: Notifier,
        poller: Poller,
        forwarded: ForwardedSignals,
        interval: float,
        patience: float,
        note_ending: Callable[[float], object],
    ) -> None:
        self.stop_reason = StopReason()  # also why the job was closed
        self.interval = interval
        self._job = job
        self._notifier = notifier
        self._poller = poller
        self._forwarded = forwarded
        self._lost: MembershipChange | None = None
        self._patience = patience
        self._note_ending = note_ending
        self._wait_until = self._log_at = 0.0  # on the monotonic clock
        self._awaits_verdict = False
        self._losses: list[str] = []  # logged since the last round, while no own worker ran
        self._has_ended_job = False  # the end of the job was requested on this node
        self._has_seen_end = False  # of the job

    # --- changes ----------------------------------------------------------------------------------

    def fds(self) -> list[int]:
        """The descriptor that is readable while there are changes, if there is one."""
        fd = self._job.fileno()
        return [fd] if fd >= 0 else []

    def take_changes(self) -> Sequence[MembershipChange]:
        """All changes since the last call; the listener is notified of them."""
        with self._poller.watchdog.calling():
            changes = list(self._job.changes())
        return self._notifier.notify_changes(changes)

    def check(self, find_own_failures: FindOwnFailures) -> list[states.AgentEvent]:
        """Return the event of the latest changes while own workers run.

        If others have failed or are lost, a failure of own workers at the same moment comes first.
        """
        changes = self.take_changes()
        kinds = {change.kind for change in changes}
        failed: list[states.AgentEvent] = []
        if kinds & {ChangeKind.FAILED, ChangeKind.LOST}:
            failed = find_own_failures(is_loss=ChangeKind.LOST in kinds)
        return failed or self._events(changes, self._forwarded.pass_on)

    def check_while_stopping(self, *, is_clearing: bool) -> list[states.AgentEvent]:
        """The same while own workers are stopped, where only the end of the job counts.

        Workers do not get another signal while they save, so signals are not forwarded. Workers
        that have succeeded (`is_clearing`) need not be stopped for another round.
        """
        reason = self.stop_reason
        changes = self.take_changes()
        if not is_clearing:
            self._note_losses(changes)
        events = self._events(changes, None)
        ends = (states.JobEnded, states.Requested, states.PeersUnreachable)
        if is_clearing or isinstance(events[0] if events else None, ends):
            return events
        self.stop_reason = reason
        return []

    def log_losses(self) -> None:
        """Log which nodes are lost while this one waits for a round."""
        self._note_losses(self._notifier.notify_changes(list(self._job.take_losses())))

    def take_losses(self) -> list[str]:
        """The messages about lost nodes that were logged since the last call."""
        losses, self._losses = self._losses, []
        return losses

    def _note_losses(self, changes: Sequence[MembershipChange]) -> None:
        """Log which nodes were lost: probably why own workers have failed."""
        for change in changes:
            if change.kind is ChangeKind.LOST:
                self._losses.append(describe_change(change))
                logger.warning("%s", self._losses[-1])

    def event_of_failed_round(self, error: BaseException) -> states.AgentEvent:
        """The event of a round that did not form."""
        if isinstance(error, RendezvousClosedError) and self.has_verdict():
            return self._end()
        return states.RoundFailed(isinstance(error, RendezvousGracefulExitError))

    def _events(
        self,
        changes: Sequence[MembershipChange],
        pass_on: Callable[[signal.Signals, str], object] | None,
    ) -> list[states.AgentEvent]:
        """The event of `changes`, at most one.

        The end of the job comes first; all changes that lead to a new round are one event.
        `pass_on` is called with the signal of each notice, and the node that has received it.
        """
        by_kind: dict[ChangeKind, list[MembershipChange]] = {}
        for change in changes:
            if change.kind is ChangeKind.NOTICE:
                _forward(change, pass_on)
            elif change.kind is ChangeKind.ENDING:
                self._note_ending(ENDING_DELAY)
            else:
                by_kind.setdefault(change.kind, []).append(change)
        closed = by_kind.pop(ChangeKind.CLOSED, None)
        if not self._has_seen_end and (closed or self.has_verdict()):
            self._has_seen_end = True
            end = self._end(closed[0].reason if closed else "")
            is_own = isinstance(end, states.Requested) and self._has_ended_job
            return [] if is_own else [end]
        if not by_kind:
            return []
        self.stop_reason = StopReason.of(
            *(describe_change(change) for same in by_kind.values() for change in same)
        )
        if ChangeKind.UNREACHABLE in by_kind:
            self._lost = by_kind[ChangeKind.UNREACHABLE][0]
            # The error has the reason.
            self.stop_reason = StopReason.of(describe_change(replace(self._lost, reason="")))
            return [states.PeersUnreachable()]
        if ChangeKind.FAILED in by_kind:
            return [states.PeersFailed()]
        return [states.NodesChanged(ChangeKind.LOST in by_kind)]

    def _end(self, reason: str = "") -> states.AgentEvent:
        """The event of the end of the job; CLOSED if only `reason` is known.

        If the end was requested on another node, the request is for this one, too: all nodes of the
        job end alike.
        """
        verdict = self._job.verdict
        if verdict is None:
            self.stop_reason = StopReason.of(reason)
            return states.JobEnded(JobOutcome.CLOSED)
        self.stop_reason = StopReason.of(verdict.reason)
        outcome = JobOutcome(verdict.outcome)  # a handler may give the word
        if outcome is JobOutcome.STOPPED and not verdict.is_past:
            return states.Requested(states.RequestKind.STOP, verdict.reason, "", verdict.node)
        if outcome is JobOutcome.FAILED and not verdict.failures:
            outcome = JobOutcome.CLOSED
        return states.JobEnded(outcome)

    # --- after own workers have succeeded ---------------------------------------------------------

    def begin_wait(self) -> None:
        """Report that all own workers have succeeded, and begin to wait for the other nodes."""
        now = time.monotonic()
        self._wait_until, self._log_at = now + self._patience, now + _LOG_AFTER
        self._job.report_success()

    def watch(self, fds: Sequence[int], due: float | None) -> list[states.AgentEvent]:
        """Wait until the job has ended, needs another round, or the timeout has passed.

        Args:
            fds: descriptors that end this call.
            due: seconds until it ends in any case, or None.
        """
        dues = [self.interval if due is None else due, self._log_at - time.monotonic()]
        pause = max(min(self._remaining(), self.interval, *dues), 0.0)
        self._poller.poll([*fds, *self.fds()], pause)
        events = self._events(self.take_changes(), self._forwarded.pass_on)
        if not events and self._remaining() <= 0:
            logger.warning(
                "other nodes have not finished %g s after this one (--exit-barrier-timeout); this "
                "node does not wait any longer",
                self._patience,
            )
            return [states.PeersFinished()]
        if not events and time.monotonic() >= self._log_at:
            self._log_at = math.inf
            logger.info("this node's workers have ended with exit code 0; it waits for other nodes")
        return events

    def _remaining(self) -> float:
        return max(self._wait_until - time.monotonic(), 0.0)

    # --- reports to the job -----------------------------------------------------------------------

    def note_succeeded(self, ended: Mapping[int, float]) -> None:
        """Record when own workers ended that have succeeded, for reports of other nodes."""
        self._job.note_succeeded(ended)

    def note_failure(self, result: RunResult) -> None:
        """Own workers have failed by themselves; `report_failures` follows."""
        self.stop_reason = stop_reason_of(result)

    def report_failures(
        self, failures: Mapping[int, ProcessFailure], *, is_final: bool = False
    ) -> None:
        """Report which own workers have failed by themselves, by global rank; once a round.

        Args:
            failures: may be empty if a subclass of the agent knows no more.
            is_final: whether no restart may follow.
        """
        failures = failures or {LAUNCHER: launcher_failure("the workers failed", 1)}
        self._job.report_failure(failures, is_final=is_final)

    def report_error(self, error: BaseException, before: Mapping[int, ProcessFailure]) -> None:
        """Report that this node failed itself, which a restart cannot fix.

        Args:
            error: why.
            before: the failures of its workers that led to this round, by global rank; they stay
                the first cause.
        """
        self.stop_reason = StopReason.of(str(error))
        self._awaits_verdict = True
        text = str(error) if isinstance(error, PlaunchError) else repr(error)
        failure = launcher_failure(text, getattr(error, "exit_code", 1))
        # `before` may have a failure of the launcher, too: its store was lost.
        rank = min([LAUNCHER, *(rank - 1 for rank in before)])
        self._job.report_failure({**before, rank: failure}, is_final=True)

    def announce(self, then: states.RestartReason | states.Outcome, state: states.State) -> None:
        """Report that this node leaves, or a request to this node for all nodes of the job."""
        request = state.request
        origin = "" if request is None else request.origin
        if request is not None and request.kind is states.RequestKind.STOP:
            if not request.node:  # else the job is over
                self._awaits_verdict = self._has_ended_job = True
                self._job.end_job(origin)
        elif then is states.RestartReason.REQUEST:
            self._job.request_round(origin)
        elif then is states.Outcome.SIGNALLED:
            self._job.announce_leave(origin or describe_request(state))

    def skip_delay(self, request: states.Requested) -> None:
        """Request that a round which the job has delayed begins now."""
        self._job.request_round(request.origin)

    def exclude(self, reason: str) -> None:
        """Report that the job is to continue without this node, and why."""
        self._job.announce_leave(reason, is_excluded=True)

    def send_notice(self, signum: signal.Signals) -> None:
        """Pass a signal on to the other nodes."""
        self._job.send_notice(signum)

    # --- the end ----------------------------------------------------------------------------------

    def has_verdict(self) -> bool:
        """Whether this node knows how the job ended."""
        return self._job.verdict is not None

    def awaits_verdict(self) -> bool:
        """Whether this node has ended the job, or failed itself, and the job has yet to react.

        The node may host the store of the job, so it must not go before.
        """
        return self._awaits_verdict and not self.has_verdict()

    def failed_result(self, own: RunResult) -> RunResult:
        """The failures of all nodes, the same first on all; `own` if the verdict is not known."""
        verdict = self._job.verdict
        if verdict is None:
            return own
        # Own failures may be more complete by now than when they were reported.
        workers = {rank: failure for rank, failure in own.failures.items() if rank >= 0}
        result = replace(
            own,
            state=WorkerState.FAILED,
            failures={**verdict.failures, **workers},
            early_ends=list(verdict.early_ends) or own.early_ends,
            first_failure=verdict.first,
            counted=dict(verdict.counted),
            no_restart=verdict.no_restart,
        )
        self._notifier.notify_failures(result)
        return result

    def error_of(self, outcome: states.Outcome) -> Exception:
        """The error of an end that this node has not caused itself."""
        verdict, run_id = self._job.verdict, self._notifier.run_id
        if outcome is states.Outcome.ERROR:
            reason = "" if self._lost is None else self._lost.reason
            node = "" if self._lost is None or not self._lost.node else f" (node {self._lost.node})"
            return RendezvousConnectionError(
                f"this node has lost touch with job {run_id!r}{node}: {reason}; its workers "
                "were stopped"
            )
        if outcome is not states.Outcome.CLOSED:
            return RuntimeError(f"the agent ended with {outcome.value!r} but without an error")
        if verdict is None:
            return RendezvousClosedError(
                f"the rendezvous of job {run_id!r} was closed: {self.stop_reason.text}"
            )
        if verdict.outcome == JobOutcome.TIMED_OUT:
            return RendezvousTimeoutError(verdict.reason)
        from datetime import datetime  # this end only

        when = f"{datetime.fromtimestamp(verdict.time).astimezone():%Y-%m-%d %H:%M:%S %z}"
        return RendezvousClosedError(
            f"job {run_id!r} ended without this node: {verdict.outcome}, found by node "
            f"{verdict.node} at {when}: {join_facts(verdict.reason, verdict.no_restart)}"
        )


def _forward(
    change: MembershipChange, pass_on: Callable[[signal.Signals, str], object] | None
) -> None:
    try:
        signum = signal.Signals(change.signum)
    except ValueError:
        signum = None
    if signum in (None, signal.SIGKILL, signal.SIGSTOP):
        logger.warning(
            "node %s forwards signal %d, which cannot be handled; it is ignored",
            change.node,
            change.signum,
        )
    elif pass_on is None:
        logger.warning(
            "%s received on node %s; the workers of this node are being stopped and do not get it",
            signum.name,
            change.node,
        )
    else:
        pass_on(signum, change.node)
