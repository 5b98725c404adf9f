"""The requests of an agent to its node's membership; thread-safe and non-blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.rendezvous import JobOutcome

from plaunch_membership import transitions
from plaunch_membership.state import JobEventKind, JobPhase, RecordedVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from plaunch_membership.failures import JobFailure
    from plaunch_membership.membership import Membership
    from plaunch_membership.node import RoundPlace
    from plaunch_membership.node_reports import NodeReports
    from plaunch_membership.operations import Routine
    from plaunch_membership.shared import Request
    from plaunch_membership.state import JobState


class AgentRequests:
    """Queues the agent's requests for the writer.

    Args:
        membership: this node's membership.
        reports: the reports that the writer can make.
    """

    def __init__(self, membership: Membership, reports: NodeReports) -> None:
        self._membership = membership
        self._reports = reports

    def want_round(self) -> None:
        """Join the next round; the result is `Participation.place`."""
        with self._membership.lock:
            self._membership.part.wants_round = True
            self._membership.part.is_active = False
            self._membership.news.take()
        self._membership.nudge()

    def rejoin(self) -> None:
        """Request a round if this node is alone in a running one, as a program may join twice.

        If there are other nodes, one of them may have reported a failure that is not known here
        yet. This request must not precede it.
        """
        with self._membership.lock:
            state, part = self._membership.state, self._membership.part
            is_running = state is not None and state.phase is JobPhase.RUNNING
            is_alone = part.place is not None and part.place.nodes == 1
            is_idle = part.is_active and not part.has_succeeded
        if is_running and is_alone and is_idle:
            self.request_round("a node has joined again")

    def report(self, failures: Sequence[JobFailure], *, is_final: bool) -> None:
        """Report that workers of the current round have failed on this node."""
        place = self._active_place()
        if place is not None:
            self._request_of(
                place, lambda: self._reports.report(place.round, failures, is_final=is_final)
            )

    def note_succeeded(self, ended: Mapping[int, float]) -> None:
        """Record when those workers ended that have succeeded, for this node's next report."""
        self._membership.part.succeeded = dict(ended)

    def succeed(self) -> None:
        """Report that all workers of the current round have succeeded on this node."""
        with self._membership.lock:
            place = self._active_place()
            if place is None:
                return
            self._membership.part.has_succeeded = True
        self._request_of(place, lambda: self._reports.succeed(place.round, place.nodes))

    def _active_place(self) -> RoundPlace | None:
        """The node's place in the round that its workers run in; None if they run in none."""
        with self._membership.lock:
            return self._membership.part.place if self._membership.part.is_active else None

    def _request_of(self, place: RoundPlace, request: Request) -> None:
        """Queue a request about the round of `place`; it is dropped if the node is no longer in it.

        The next incarnation may have a round with the same number.
        """

        def if_current() -> Routine[None]:
            if self._membership.part.place is place:
                yield from request()

        self._membership.request(if_current)

    def send_notice(self, signum: int) -> None:
        """Forward a signal to all other nodes.

        If several nodes send the same notice before they have read each other's, it counts as one,
        and none of the senders receives it.
        """
        membership = self._membership
        with membership.lock:
            since = membership.part.notices[signum] = (
                -1 if membership.state is None else membership.state.version
            )

        def make(state: JobState) -> JobState | None:
            event = state.event
            is_sent = (
                event.kind is JobEventKind.NOTICE
                and event.signum == signum
                and state.version > since
            )
            if is_sent or signum not in membership.part.notices:
                return None
            return transitions.notify(state, membership.me, signum)

        membership.request(lambda: membership.change(make))

    def request_round(self, reason: str) -> None:
        """End the current round on all nodes, because a new one is requested."""
        place = self._active_place()
        if place is None:
            return
        membership = self._membership

        def make(state: JobState) -> JobState | None:
            return transitions.end_round(
                state,
                JobEventKind.REQUESTED,
                membership.me,
                reason,
                by=membership.me,
                from_round=place.round,
            )

        self._request_of(place, lambda: membership.change(make))

    def close(self, reason: str, outcome: JobOutcome = JobOutcome.CLOSED) -> None:
        """End the job as `closed` or `stopped`, as requested."""
        membership = self._membership
        verdict = RecordedVerdict(
            outcome, membership.identity.host, reason, membership.wall_clock()
        )
        membership.request(
            lambda: membership.change(
                lambda state: transitions.end(state, verdict, by=membership.me)
            )
        )

    def announce_leave(self, reason: str, *, is_excluded: bool = False) -> None:
        """Announce that this node will leave voluntarily, once its workers have ended."""
        self._membership.request(
            lambda: self._reports.announce_leave(reason, is_excluded=is_excluded)
        )

    def leave(self, reason: str) -> None:
        """Leave voluntarily, as its workers have ended; the job may continue without this node."""
        self._membership.request(lambda: self._reports.leave(reason), is_last=True)

    def linger(self, stays: Callable[[float, Collection[str]], bool]) -> None:
        """Stay until all other nodes know the verdict, or `stays` returns False."""
        self._membership.request(lambda: self._reports.linger(stays), is_last=True)

    def finish(self) -> None:
        """Stop the writer after the pending requests."""
        with self._membership.lock:
            self._membership.requests.is_closing = True
        self._membership.nudge()
