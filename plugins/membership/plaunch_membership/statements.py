"""The statements of a node to all others: failures, success, departure."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch_membership import early_ends, transitions
from plaunch_membership.bounds import MAX_NAME
from plaunch_membership.failures import cut, summarize
from plaunch_membership.keys import entry, tickets
from plaunch_membership.operations import Add, Routine, Set
from plaunch_membership.records import MAX_REASON, RecordError
from plaunch_membership.state import JobPhase, JobState, host_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from plaunch_membership.failures import JobFailure
    from plaunch_membership.heartbeat import Heartbeat
    from plaunch_membership.membership import Membership
    from plaunch_membership.shared import Request

_log = logging.getLogger("plaunch")

_SECOND_LOOK = 0.3  # seconds that an agent has to find out whether its own workers failed as well
_LINGER = 1.0  # seconds between two looks at who has departed, if nobody does
_MOST_NAMED = 16  # nodes
_SAID_AFTER = 2.0  # seconds of lingering after which it is said for whom


class Statements:
    """Routines for the writer's thread; each writes its statement once.

    Args:
        ours: this node's membership.
        heartbeat: says at once that the node goes.
    """

    def __init__(self, ours: Membership, heartbeat: Heartbeat) -> None:
        self._ours = ours
        self._heartbeat = heartbeat
        self._settled: int | None = None  # the last round of which it has said who failed
        self._settle_at: tuple[int, float] | None = None  # when it will if the agent does not
        self._has_departed = False

    def begin_anew(self) -> None:
        """Forget all statements; called when the job is another one."""
        self._settled = self._settle_at = None
        self._has_departed = False

    @property
    def alarm(self) -> float | None:
        """When `due` has something to say at the latest, on the membership's clock; None: never."""
        return None if self._settle_at is None else self._settle_at[1]

    def are_expected(self, state: JobState) -> bool:
        """Whether the others wait for a word of this node, who has failed or that it departs."""
        place = self._ours.part.place
        return (state.phase is JobPhase.OVER and not self._has_departed) or (
            state.phase is JobPhase.SETTLING
            and place is not None
            and place.round == state.round
            and self._settled != state.round
        )

    def due(self, state: JobState) -> Request | None:
        """The expected statement that is due now; None while the agent may still make it."""
        if state.phase is JobPhase.OVER:
            return self._depart
        now = self._ours.clock()
        if self._settle_at is None or self._settle_at[0] != state.round:
            self._settle_at = (state.round, now + _SECOND_LOOK)
        # An agent that has asked for the next round has said all that it had to say about this one.
        if self._ours.part.is_active and now < self._settle_at[1]:
            return None
        return lambda: self._settle(state.round, (), is_final=False)

    def report(
        self, round_: int, failures: Sequence[JobFailure], *, is_final: bool
    ) -> Routine[None]:
        """Say that workers of a round have failed on this node."""
        yield from self._settle(round_, failures, is_final=is_final)
        what = failures[0].summary if failures else "workers failed"
        yield from self._ours.change(
            lambda state: transitions.fail(state, self._ours.me, what, from_round=round_)
        )

    def _settle(
        self, round_: int, failures: Iterable[JobFailure], *, is_final: bool
    ) -> Routine[None]:
        """Say who failed on this node in a round, once."""
        if self._settled == round_:
            return
        self._settled = round_
        summary = summarize(failures).to_record()
        log = self._ours.keys.settled(round_)
        ticket: int = yield Add(tickets(log))
        key = entry(log, ticket)
        said = {
            "node": self._ours.me,
            "is_final": is_final,
            "succeeded": early_ends.to_records(self._ours.part.succeeded),
        }
        try:
            value = self._ours.codec.encode(key, {**said, **summary})
        except RecordError as error:
            _log.warning("it is reported without its failures: %s", error)
            value = self._ours.codec.encode(key, {**said, "failures": []})
        yield Set(key, value)

    def succeed(self, round_: int, nodes: int) -> Routine[None]:
        """State that this node is done; the last node to do so finds the verdict."""
        ticket = yield from self._append(self._ours.keys.done(round_))
        if ticket < nodes:
            return
        if len((yield from self._ours.done_nodes(round_))) < nodes:
            return  # it was a ticket that nobody used; the last one is still to come
        yield from self._ours.find_success(round_)

    def leave(self, reason: str, *, is_excluded: bool = False) -> Routine[None]:
        """Say that this node goes on purpose; once is enough.

        If it `is_excluded`, no node of its host is to come again, unless all are on that host.
        """
        ours = self._ours
        with ours.lock:
            if ours.part.leaving:
                return
            ours.part.leaving = cut(reason, MAX_REASON) or "for no reason given"
            ours.part.wants_round = False
        yield from self._heartbeat.beat()
        excluded = ""
        if is_excluded and ours.state is not None:
            members = yield from ours.members(ours.state)
            if any(member.host != ours.identity.host for member in members.values()):
                excluded = ours.identity.host

        def go(state: JobState) -> JobState | None:
            # Asked of each state: the others may have formed a round without this node by now. And
            # whoever is done may go without ending the round of those who are not.
            is_member = ours.is_member(state) and not ours.part.has_succeeded
            return transitions.leave(state, ours.me, reason, is_member=is_member, excluded=excluded)

        yield from ours.change(go)

    def _depart(self) -> Routine[None]:
        """Say that this node knows the verdict."""
        self._has_departed = True
        yield from self._append(self._ours.keys.departures)

    def _append(self, log: str) -> Routine[int]:
        """Write this node's name to a log; the result is the ticket."""
        ticket: int = yield Add(tickets(log))
        key = entry(log, ticket)
        yield Set(key, self._ours.codec.encode(key, {"node": self._ours.me}))
        return ticket

    def linger(self, stays: Callable[[float, Collection[str]], bool]) -> Routine[None]:
        """Wait until everybody who was there has departed.

        Args:
            stays: whether to go on, after so many seconds, for the sake of these nodes; some of
                them may have been lost, which those who are only paused are, too.
        """
        ours = self._ours
        began = ours.clock()
        has_said = False
        state = ours.state
        if state is None or state.phase is not JobPhase.OVER:
            return
        expected = set((yield from ours.members(state)))
        for round_ in {state.round, state.next_round}:
            expected.update((yield from ours.joined_nodes(round_)))
        waiting = expected - {ours.me} - set(ours.peers.gone)
        log = ours.log_reader(ours.keys.departures)
        # Whoever is to leave has been told to end at once.
        while waiting and stays(ours.clock() - began, waiting) and not ours.requests:
            for _, key, value in (yield from log.read()):
                try:
                    node = ours.codec.decode(key, value).text("node", max_len=MAX_NAME)
                except RecordError as error:
                    ours.doubts.note("a departure", error)
                else:
                    waiting.discard(node)
            if waiting:
                if not has_said and ours.clock() - began >= _SAID_AFTER:
                    has_said = True
                    _log.warning(
                        "this node hosts the store of job %r and stays for up to %g s, until all "
                        "nodes know how the job ended: %s",
                        ours.identity.run_id,
                        ours.timing.close_timeout,
                        ", ".join(sorted(map(host_of, waiting))[:_MOST_NAMED]),
                    )
                yield from log.wait(min(_LINGER, ours.timing.keep_alive_interval))
