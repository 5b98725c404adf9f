"""The other nodes behind a rendezvous that knows the whole job.

What this node reports, what the others' changes mean for it, and the result that the job's verdict
makes of it. Nothing here stops or starts anything.
"""

from __future__ import annotations

import logging
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from plaunch.agent import states
from plaunch.agent.messages import describe_asker, describe_failures
from plaunch.agent.peers import ObservedPeers
from plaunch.agent.results import LAUNCHER, launcher_failure
from plaunch.agent.worker import RunResult, WorkerState
from plaunch.errors import PlaunchError, RendezvousClosedError, RendezvousConnectionError
from plaunch.rendezvous.api import ChangeKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.agent.notices import Notices
    from plaunch.agent.notifications import Notifier
    from plaunch.agent.peers import LookAtOwn
    from plaunch.agent.poller import Poller
    from plaunch.process.failures.failure import ProcessFailure
    from plaunch.rendezvous.api import MembershipChange, RendezvousHandler
    from plaunch.rendezvous.job import JobRendezvous

logger = logging.getLogger("plaunch")

_OUTCOMES = {
    "succeeded": states.Outcome.SUCCEEDED,
    "failed": states.Outcome.FAILED,
    "closed": states.Outcome.CLOSED,
}
_WORDS = {
    ChangeKind.ARRIVED: ("node {} arrived", "a node arrived"),
    ChangeKind.LEFT: ("node {} left", "a node left"),
    ChangeKind.LOST: ("node {} was lost", "a node was lost"),
    ChangeKind.FAILED: ("workers of node {} failed", "workers of another node failed"),
    ChangeKind.RESTART: ("node {} asks for a restart", "another node asks for a restart"),
    ChangeKind.UNREACHABLE: (
        "node {} cannot be reached any more",
        "the other nodes cannot be reached any more",
    ),
}


class JobPeers(ObservedPeers):
    """The nodes of one job, as one of its agents sees them.

    Args:
        handler: the rendezvous, as torchrun knows it.
        notifier: is told of changes.
        poller: waits, and is woken.
        job: the rendezvous once more, for what it knows of the job.
        notices: passes signals on that another node has received.
    """

    is_job_wide = True
    interval = 1.0  # what knows of other nodes looks after its connections when it is asked

    def __init__(
        self,
        handler: RendezvousHandler,
        notifier: Notifier,
        poller: Poller,
        job: JobRendezvous,
        *,
        notices: Notices,
    ) -> None:
        super().__init__(handler, notifier, poller, job)
        self._job = job
        self._notices = notices
        self._run_id = handler.get_run_id()
        self._lost: MembershipChange | None = None
        self._timeout = 0.0
        self._wait_until = 0.0  # on the monotonic clock
        self._awaits_verdict = False
        self._losses: list[str] = []  # said while no own worker runs, since the last round
        self._has_ended_job = False  # this node has requested it for all

    # --- what happens to them ---------------------------------------------------------------------

    def look(self, look_at_own: LookAtOwn) -> list[states.Event]:
        """What has happened to them while own workers run."""
        changes = self.take_changes()
        ends: list[states.Event] = []
        kinds = {change.kind for change in changes}
        if kinds & {ChangeKind.FAILED, ChangeKind.LOST}:
            ends = look_at_own(is_loss=ChangeKind.LOST in kinds)
        return ends or self._events(changes, self._notices.pass_on)

    def look_while_stopping(self, *, is_clearing: bool) -> list[states.Event]:
        """The same while own workers are stopped: no news but the end keeps that from its aim.

        Nobody gets another signal while it saves what it has, hence no notices. Workers that have
        succeeded need not be stopped for another round.
        """
        reason = self.reason
        changes = self.take_changes()
        if not is_clearing:
            self._note_losses(changes)
        events = self._events(changes, None)
        ends = (states.JobEnded, states.Requested, states.PeersUnreachable)
        if is_clearing or isinstance(events[0] if events else None, ends):
            return events
        self.reason = reason
        return []

    def look_while_joining(self) -> None:
        """Log which nodes are lost while this one waits for a round."""
        self._note_losses(self._notifier.notify_changes(list(self._job.take_losses())))

    def take_losses(self) -> list[str]:
        """The messages about lost nodes that were logged since the last call."""
        losses, self._losses = self._losses, []
        return losses

    def _note_losses(self, changes: Sequence[MembershipChange]) -> None:
        """Say which nodes were lost; own workers have failed because of that, probably."""
        for change in changes:
            if change.kind is ChangeKind.LOST:
                self._losses.append(_describe(change))
                logger.warning("%s", self._losses[-1])

    def event_of_failed_round(self, error: BaseException) -> states.Event:
        """What it means that a round did not form."""
        if isinstance(error, RendezvousClosedError) and self.has_verdict():
            return self._end()
        return super().event_of_failed_round(error)

    def _events(
        self,
        changes: Sequence[MembershipChange],
        pass_on: Callable[[signal.Signals, str], object] | None,
    ) -> list[states.Event]:
        """What `changes` mean for this agent: nothing, or one event.

        The end of the job outweighs everything, and whatever brings a new round does so once.
        `pass_on` is called with the signal of each notice, and the node that has received it.
        """
        by_kind: dict[ChangeKind, list[MembershipChange]] = {}
        for change in changes:
            if change.kind is ChangeKind.NOTICE:
                _hear_notice(change, pass_on)
            else:
                by_kind.setdefault(change.kind, []).append(change)
        if ChangeKind.CLOSED in by_kind:
            end = self._end(by_kind[ChangeKind.CLOSED][0].reason)
            is_own = isinstance(end, states.Requested) and self._has_ended_job
            return [] if is_own else [end]
        if not by_kind:
            return []
        self.reason = "; ".join(_describe(change) for same in by_kind.values() for change in same)
        if ChangeKind.UNREACHABLE in by_kind:
            self._lost = by_kind[ChangeKind.UNREACHABLE][0]
            self.reason = _describe(replace(self._lost, reason=""))  # the error says why
            return [states.PeersUnreachable()]
        if ChangeKind.FAILED in by_kind:
            return [states.PeersFailed()]
        return [states.NodesChanged(ChangeKind.LOST in by_kind)]

    def _end(self, reason: str = "") -> states.Event:
        """The end of the job, now that it is over; CLOSED if only `reason` is known.

        If it was requested on another node, the request is for this one, too: all nodes that were
        there end alike.
        """
        verdict = self._job.verdict
        if verdict is None:
            self.reason = reason
            return states.JobEnded(states.Outcome.CLOSED)
        self.reason = verdict.reason
        if verdict.outcome == "failed" and not verdict.failures:
            return states.JobEnded(states.Outcome.CLOSED)
        if verdict.outcome == "stopped" and not verdict.is_past:
            return states.Requested(states.RequestKind.STOP, verdict.reason, "", verdict.node)
        return states.JobEnded(_OUTCOMES.get(verdict.outcome, states.Outcome.CLOSED))

    # --- the wait for them, when own workers have succeeded ---------------------------------------

    def begin_wait(self, timeout: float, wait: Callable[[float], None]) -> None:
        """Tell that all own workers succeeded; the job ends when those of all nodes have."""
        del wait
        self._timeout, self._wait_until = timeout, time.monotonic() + timeout
        self._job.report_success()

    def watch(self, fds: Sequence[int], due: float | None) -> list[states.Event]:
        """Wait until the job has ended, or goes on after all, or it takes too long.

        Nothing is written and nobody is asked: the rendezvous tells.
        """
        pause = min(self._patience(), self.interval, self.interval if due is None else due)
        self._poller.poll([*fds, *self.fds()], pause)
        events = self._events(self.take_changes(), self._notices.pass_on)
        if not events and self._patience() <= 0:
            logger.warning(
                "other nodes have not finished %g s after this one (--exit-barrier-timeout); this "
                "node does not wait any longer",
                self._timeout,
            )
            return [states.PeersFinished()]
        return events

    def _patience(self) -> float:
        return max(self._wait_until - time.monotonic(), 0.0)

    # --- what they are told -----------------------------------------------------------------------

    def note_succeeded(self, ended: Mapping[int, float]) -> None:
        """Record when own workers ended that have succeeded, for reports of other nodes."""
        self._job.note_succeeded(ended)

    def note_failure(self, result: RunResult) -> None:
        """Know that own workers failed by themselves; `report_failures` follows."""
        self.reason = describe_failures(result, in_job=True)

    def report_failures(
        self, failures: Mapping[int, ProcessFailure], *, is_final: bool = False
    ) -> None:
        """Tell which own workers failed by themselves, by global rank; once a round."""
        # An agent of somebody else's may know no more than that.
        failures = failures or {LAUNCHER: launcher_failure("the workers failed", 1)}
        self._job.report_failure(failures, is_final=is_final)

    def report_error(self, error: BaseException, before: Mapping[int, ProcessFailure]) -> None:
        """Tell that this node failed itself, which no restart will mend.

        `before` are the failures of its workers, by global rank, that led to this round: they stay
        the first cause.
        """
        self.reason = str(error)
        self._awaits_verdict = True
        text = self.reason if isinstance(error, PlaunchError) else repr(error)
        failure = launcher_failure(text, getattr(error, "exit_code", 1))
        # Such a failure may have led to this round as well: its store was lost.
        rank = min([LAUNCHER, *(rank - 1 for rank in before)])
        self._job.report_failure({**before, rank: failure}, is_final=True)

    def announce(self, then: states.Again | states.Outcome, state: states.State) -> None:
        """Report that this node leaves, or a request to this node for all nodes of the job."""
        request = state.request
        wish = "" if request is None else request.origin
        if request is not None and request.kind is states.RequestKind.STOP:
            if not request.node:  # else the job is over
                self._awaits_verdict = self._has_ended_job = True
                self._job.end_job(wish)
        elif then is states.Again.REQUEST:
            self._job.request_round(wish)
        elif then is states.Outcome.SIGNALLED:
            self._job.announce_leave(wish or describe_asker(state))

    def exclude(self, reason: str) -> None:
        """Tell that the job goes on without this node, and why."""
        self._job.announce_leave(reason, is_excluded=True)

    def send_notice(self, signum: signal.Signals) -> None:
        """Pass a signal on to the other nodes."""
        self._job.send_notice(signum)

    # --- how it ends ------------------------------------------------------------------------------

    def has_verdict(self) -> bool:
        """Whether this node knows how the job ended."""
        return self._job.verdict is not None

    def awaits_verdict(self) -> bool:
        """Whether the job has yet to hear of its end from this node, which may host its store."""
        return self._awaits_verdict and not self.has_verdict()

    def failed_result(self, own: RunResult) -> RunResult:
        """The result of a job that failed: the failures of all nodes, the same one first on all."""
        verdict = self._job.verdict
        if verdict is None:
            raise RuntimeError("the job failed, but its verdict is not known")
        # More may be known of own workers by now than when it was told.
        workers = {rank: failure for rank, failure in own.failures.items() if rank >= 0}
        result = RunResult(
            WorkerState.FAILED,
            failures={**verdict.failures, **workers},
            stopped=own.stopped,
            early_ends=list(verdict.early_ends) or own.early_ends,
            first_failure=verdict.first,
            counted=dict(verdict.counted),
            no_restart=verdict.no_restart,
        )
        self._notifier.notify_failures(result)
        return result

    def error_of(self, outcome: states.Outcome) -> Exception:
        """The error of a job that ended without this node, or of a node that has lost touch."""
        verdict = self._job.verdict
        if outcome is states.Outcome.ERROR:
            reason = "" if self._lost is None else self._lost.reason
            node = "" if self._lost is None or not self._lost.node else f" (node {self._lost.node})"
            return RendezvousConnectionError(
                f"this node has lost touch with job {self._run_id!r}{node}: {reason}; its workers "
                "were stopped"
            )
        if outcome is not states.Outcome.CLOSED or verdict is None:
            return super().error_of(outcome)
        from datetime import datetime  # this end only

        when = f"{datetime.fromtimestamp(verdict.time).astimezone():%Y-%m-%d %H:%M:%S %z}"
        return RendezvousClosedError(
            f"job {self._run_id!r} ended without this node: {verdict.outcome}, found by node "
            f"{verdict.node} at {when}: {verdict.reason}"
        )


def _hear_notice(
    change: MembershipChange, pass_on: Callable[[signal.Signals, str], object] | None
) -> None:
    try:
        signum = signal.Signals(change.signum)
    except ValueError:
        signum = None
    if signum in (None, signal.SIGKILL, signal.SIGSTOP):
        logger.warning(
            "node %s asks for signal %d to be passed on, which cannot be handled; it is ignored",
            change.node,
            change.signum,
        )
        return
    if pass_on is None:
        logger.warning(
            "%s received on node %s; the workers of this node are being stopped and do not get it",
            signum.name,
            change.node,
        )
        return
    pass_on(signum, change.node)


def _describe(change: MembershipChange) -> str:
    if change.kind is ChangeKind.FAILED and change.reason:
        return change.reason  # which names the worker and its host
    with_name, without = _WORDS[change.kind]
    node = change.node if change.index is None else f"{change.node} (index {change.index})"
    text = with_name.format(node) if change.node else without
    return f"{text}: {change.reason}" if change.reason else text
