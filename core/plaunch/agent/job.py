"""The agent's side of a rendezvous that knows the whole job.

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
from plaunch.agent.messages import describe_failures
from plaunch.agent.worker import RunResult, WorkerState
from plaunch.errors import RendezvousClosedError, RendezvousConnectionError
from plaunch.rendezvous.api import ChangeKind
from plaunch.rendezvous.job import JobRendezvous

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.process.failures.failure import ProcessFailure
    from plaunch.rendezvous.api import MembershipChange, RendezvousHandler

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
    ChangeKind.UNREACHABLE: (
        "node {} cannot be reached any more",
        "the other nodes cannot be reached any more",
    ),
}


class Job:
    """One job, as one of its agents sees it.

    Args:
        handler: the rendezvous.
        run_id: the id of the job.
        host: the name of this host.
    """

    def __init__(self, handler: JobRendezvous, run_id: str, host: str) -> None:
        self._handler = handler
        self._run_id = run_id
        self._host = host
        self._lost: MembershipChange | None = None
        self._wait_until = 0.0  # on the monotonic clock
        self.has_told_error = False
        self.reason = ""  # why the agent changes its course, in a few words

    @classmethod
    def find(cls, handler: RendezvousHandler, host: str) -> Job | None:
        """The job behind `handler`; None if it knows of none."""
        if not isinstance(handler, JobRendezvous):
            return None
        return cls(handler, handler.get_run_id(), host)

    def fileno(self) -> int:
        """A descriptor that is readable while there are changes; -1 if there are never any."""
        return self._handler.fileno()

    def take_changes(self) -> list[MembershipChange]:
        """All changes since the last call."""
        return list(self._handler.changes())

    def events(
        self,
        changes: Sequence[MembershipChange],
        pass_on: Callable[[signal.Signals, str], object] | None,
    ) -> list[states.Event]:
        """What `changes` mean for this agent: nothing, or one event.

        The end of the job outweighs everything, and whatever brings a new round does so once.
        `pass_on` is called with the signal of each notice, and the node that has received it; None
        while workers are being stopped: whoever saves what it has gets no other signal.
        """
        by_kind: dict[ChangeKind, list[MembershipChange]] = {}
        for change in changes:
            if change.kind is ChangeKind.NOTICE:
                _hear_notice(change, pass_on)
            else:
                by_kind.setdefault(change.kind, []).append(change)
        if ChangeKind.CLOSED in by_kind:
            return [states.JobEnded(self.end(by_kind[ChangeKind.CLOSED][0].reason))]
        if not by_kind:
            return []
        self.reason = "; ".join(_describe(change) for same in by_kind.values() for change in same)
        if ChangeKind.UNREACHABLE in by_kind:
            self._lost = by_kind[ChangeKind.UNREACHABLE][0]
            self.reason = _describe(replace(self._lost, reason=""))  # the error says why
            return [states.PeersUnreachable()]
        if ChangeKind.FAILED in by_kind:
            return [states.PeersFailed()]
        return [states.NodesChanged()]

    def events_of_end(self, changes: Sequence[MembershipChange]) -> list[states.Event]:
        """The same while workers are being stopped: another round is joined in any case."""
        reason = self.reason
        events = self.events(changes, None)
        if isinstance(events[0] if events else None, (states.JobEnded, states.PeersUnreachable)):
            return events
        self.reason = reason
        return []

    def end(self, reason: str = "") -> states.Outcome:
        """How the job ended, now that it has; CLOSED if nobody says more than `reason`."""
        verdict = self._handler.verdict
        if verdict is None:
            self.reason = reason
            return states.Outcome.CLOSED
        self.reason = verdict.reason
        if verdict.outcome == "failed" and not verdict.failures:
            return states.Outcome.CLOSED
        return _OUTCOMES.get(verdict.outcome, states.Outcome.CLOSED)

    def has_verdict(self) -> bool:
        """Whether this node knows how the job ended."""
        return self._handler.verdict is not None

    # --- what this node reports -------------------------------------------------------------------

    def note_failure(self, result: RunResult) -> None:
        """Know that workers of this node failed by themselves; `tell_failures` follows."""
        self.reason = describe_failures(result)

    def tell_failures(self, own: Mapping[int, ProcessFailure]) -> None:
        """Tell which workers of this node failed by themselves, by global rank; once a round."""
        from plaunch.agent.job_failures import (  # noqa: PLC0415 - failures only
            node_failure,
            to_job_failures,
        )

        failures = to_job_failures(own)
        if not failures:
            # An agent of somebody else's may know no more than that.
            failures = [node_failure(RuntimeError(), self._host, "the workers failed")]
        self._handler.report_failure(failures)

    def tell_error(
        self, error: BaseException, before: Mapping[int, ProcessFailure] | None = None
    ) -> None:
        """Tell that this node failed itself, which no restart will mend.

        `before` are the failures of its workers, by global rank, that led to this round: they stay
        the first cause.
        """
        self.reason = str(error)
        self.has_told_error = True
        from plaunch.agent.job_failures import (  # noqa: PLC0415 - failures only
            node_failure,
            to_job_failures,
        )

        failures = [*to_job_failures(before or {}), node_failure(error, self._host)]
        self._handler.report_failure(failures, is_final=True)

    def tell_success(self, patience: float) -> None:
        """Tell that all workers of this node succeeded, and be patient with the others' for now.

        `patience` is for how long, in seconds.
        """
        self._wait_until = time.monotonic() + patience
        self._handler.report_success()

    def patience(self) -> float:
        """For how many seconds the other nodes are still to be waited for."""
        return max(self._wait_until - time.monotonic(), 0.0)

    def send_notice(self, signum: signal.Signals) -> None:
        """Pass a signal on to the other nodes."""
        self._handler.send_notice(signum)

    def announce_leave(self, signum: signal.Signals) -> None:
        """Tell that this node goes because of a signal."""
        self._handler.announce_leave(f"{signum.name} received")

    # --- how it ends ------------------------------------------------------------------------------

    def failed_result(self, own: RunResult) -> RunResult:
        """The result of a job that failed: the failures of all nodes, the same one first on all."""
        from plaunch.agent.job_failures import (  # noqa: PLC0415 - failures only
            describe_groups,
            from_job_failures,
        )

        verdict = self._handler.verdict
        if verdict is None:
            raise RuntimeError("the job failed, but its verdict is not known")
        failures, first = from_job_failures(verdict.failures, own.failures)
        return RunResult(
            WorkerState.FAILED,
            failures=failures,
            stopped=own.stopped,
            first_failure=first,
            counted=describe_groups(verdict.others, failures),
        )

    def closed_error(self) -> RendezvousClosedError:
        """The error of a job that ended and was neither a failure nor this node's success."""
        verdict = self._handler.verdict
        if verdict is None:
            return RendezvousClosedError(
                f"the rendezvous of job {self._run_id!r} was closed: {self.reason}"
            )
        from datetime import datetime  # noqa: PLC0415 - this end only

        when = f"{datetime.fromtimestamp(verdict.time).astimezone():%Y-%m-%d %H:%M:%S %z}"
        return RendezvousClosedError(
            f"job {self._run_id!r} ended without this node: {verdict.outcome}, found by node "
            f"{verdict.node} at {when}: {verdict.reason}"
        )

    def unreachable_error(self) -> RendezvousConnectionError:
        """The error of a node that has lost touch with the others."""
        reason = "" if self._lost is None else self._lost.reason
        node = "" if self._lost is None or not self._lost.node else f" (node {self._lost.node})"
        return RendezvousConnectionError(
            f"this node has lost touch with job {self._run_id!r}{node}: {reason}; its workers were "
            "stopped"
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
            "node %s asks for signal %d to be passed on, which is none that can be handled; it is "
            "ignored",
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
    with_name, without = _WORDS[change.kind]
    text = with_name.format(change.node) if change.node else without
    return f"{text}: {change.reason}" if change.reason else text
