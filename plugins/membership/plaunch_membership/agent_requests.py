"""The requests of an agent to its node's membership; on any thread, without waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch_membership import transitions
from plaunch_membership.state import JobPhase, RecordedVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from plaunch_membership.failures import JobFailure
    from plaunch_membership.membership import Membership
    from plaunch_membership.node import RoundPlace
    from plaunch_membership.operations import Routine
    from plaunch_membership.shared import Request
    from plaunch_membership.state import JobState
    from plaunch_membership.statements import Statements


class AgentRequests:
    """Puts into words for the writer what the agent wants.

    Args:
        ours: this node's membership.
        statements: what the writer can say.
    """

    def __init__(self, ours: Membership, statements: Statements) -> None:
        self._ours = ours
        self._statements = statements

    def want_round(self) -> None:
        """Take part in the next round; `Part.place` is the answer."""
        with self._ours.lock:
            self._ours.part.wants_round = True
            self._ours.part.is_active = False
            self._ours.news.take()
        self._ours.nudge()

    def rejoin(self) -> None:
        """Ask for a round if this node is alone in one that goes on, as a program may join twice.

        With other nodes, one of them may have reported a failure that is not known here yet, and
        which this request must not precede.
        """
        with self._ours.lock:
            state, part = self._ours.state, self._ours.part
            goes_on = state is not None and state.phase is JobPhase.RUNNING
            is_alone = part.place is not None and part.place.nodes == 1
            is_idle = part.is_active and not part.has_succeeded
        if goes_on and is_alone and is_idle:
            self.request_round("a node has joined again")

    def report(self, failures: Sequence[JobFailure], *, is_final: bool) -> None:
        """Say that workers of the present round have failed on this node."""
        place = self._active_place()
        if place is not None:
            self._request_of(
                place, lambda: self._statements.report(place.round, failures, is_final=is_final)
            )

    def note_succeeded(self, ended: Mapping[int, float]) -> None:
        """Record when workers of this node ended that have succeeded, for its next report."""
        self._ours.part.succeeded = dict(ended)

    def succeed(self) -> None:
        """Say that all workers of the present round have succeeded on this node."""
        with self._ours.lock:
            place = self._active_place()
            if place is None:
                return
            self._ours.part.has_succeeded = True
        self._request_of(place, lambda: self._statements.succeed(place.round, place.nodes))

    def _active_place(self) -> RoundPlace | None:
        """The node's place in the round that its workers run in; None if they run in none."""
        with self._ours.lock:
            return self._ours.part.place if self._ours.part.is_active else None

    def _request_of(self, place: RoundPlace, request: Request) -> None:
        """Make a statement about the round of `place`, unless this node is no longer in it.

        The next incarnation has a round with the same number, for which it would be wrong.
        """

        def said() -> Routine[None]:
            if self._ours.part.place is place:
                yield from request()

        self._ours.request(said)

    def send_notice(self, signum: int) -> None:
        """Pass a signal on to all other nodes.

        Notices that nodes send before they know each other's are one notice; none of them gets it.
        """
        ours = self._ours
        with ours.lock:
            since = ours.part.notices[signum] = -1 if ours.state is None else ours.state.version

        def make(state: JobState) -> JobState | None:
            event = state.event
            is_told = event.kind == "notice" and event.signum == signum and state.version > since
            if is_told or signum not in ours.part.notices:
                return None
            return transitions.notify(state, ours.me, signum)

        ours.request(lambda: ours.change(make))

    def request_round(self, reason: str) -> None:
        """End the present round on all nodes, because a new one is requested."""
        place = self._active_place()
        if place is None:
            return
        ours = self._ours

        def make(state: JobState) -> JobState | None:
            return transitions.call(
                state, "requested", ours.me, reason, by=ours.me, from_round=place.round
            )

        self._request_of(place, lambda: ours.change(make))

    def close(self, reason: str, outcome: str = "closed") -> None:
        """Find the verdict that the job is `closed` or `stopped`, because that is requested."""
        ours = self._ours
        verdict = RecordedVerdict(outcome, ours.identity.host, reason, ours.wall_clock())
        ours.request(lambda: ours.change(lambda state: transitions.end(state, verdict, by=ours.me)))

    def announce_leave(self, reason: str, *, is_excluded: bool = False) -> None:
        """Say that this node goes on purpose, without going yet."""
        self._ours.request(lambda: self._statements.leave(reason, is_excluded=is_excluded))

    def leave(self, reason: str) -> None:
        """Go on purpose; the job may go on without this node."""
        self._ours.request(lambda: self._statements.leave(reason), is_last=True)

    def linger(self, stays: Callable[[float, Collection[str]], bool]) -> None:
        """Stay until all other nodes know the verdict, or `stays` has enough."""
        self._ours.request(lambda: self._statements.linger(stays), is_last=True)

    def finish(self) -> None:
        """Go, once all that is wanted is done."""
        with self._ours.lock:
            self._ours.requests.is_closing = True
        self._ours.nudge()
