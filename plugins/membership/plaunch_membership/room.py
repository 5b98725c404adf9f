"""A place in a round that runs and has room: when a node asks for it, and what it waits for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch.durations import LONGEST

from plaunch_membership import transitions
from plaunch_membership.keys import tickets
from plaunch_membership.operations import Add, MultiGet, Routine
from plaunch_membership.state import JobPhase

if TYPE_CHECKING:
    from plaunch_membership.heartbeat import Heartbeat
    from plaunch_membership.membership import Membership
    from plaunch_membership.state import JobState

_log = logging.getLogger("plaunch")


class RoomRequest:
    """Ends a round that has room for this node, unless some nodes have finished already.

    The workers of all others stop then, so other nodes are given time to come as well. The time of
    who came first is over first, and who comes last need not wait if that makes it full.

    Args:
        ours: this node's membership.
        heartbeat: shows that the node is there, and who of those that wait is.
    """

    def __init__(self, ours: Membership, heartbeat: Heartbeat) -> None:
        self._ours = ours
        self._heartbeat = heartbeat
        self._planned: tuple[int, float] | None = None  # a round with room, and when it asks
        self._asked_in: int | None = None  # the round in whose course it has asked, or must not

    def begin_anew(self) -> None:
        """Have asked for nothing; called when the job is another one."""
        self._planned = self._asked_in = None

    @property
    def alarm(self) -> float | None:
        """When `is_due` may become true, on the membership's clock; None if no time brings that."""
        return None if self._planned is None else self._planned[1]

    def is_due(self, state: JobState) -> bool:
        """Whether there is room in a state that the node has come to, and it is time to ask."""
        if (
            state.phase is not JobPhase.RUNNING
            or state.world is None
            or state.world.nodes >= self._ours.identity.max_nodes
            or self._asked_in == state.round
        ):
            return False
        left = self._time_left(state.round)
        return left is None or left <= 0

    def _time_left(self, round_: int) -> float | None:
        """Seconds until the round is ended that has room; None if that is not planned yet."""
        if self._planned is None or self._planned[0] != round_:
            return None
        return self._planned[1] - self._ours.clock()

    def ask(self, running: JobState) -> Routine[None]:
        """Plan to end a round that has room, or end it if it is time."""
        ours, round_ = self._ours, running.round
        # It has asked, and the next round was formed without it all the same: not at once again.
        is_left_out = self._asked_in == round_ - 1
        if self._planned is None or self._planned[0] != round_:
            patience = ours.timing.arrival_patience
            if is_left_out:
                patience = max(patience, ours.timing.keep_alive_interval)
            self._planned = (round_, ours.clock() + patience)
        if (
            ours.clock() < self._planned[1]
            and not ours.is_member(running)
            and (is_left_out or not (yield from self._makes_full(running)))
        ):
            return
        self._asked_in = round_
        if (yield Add(tickets(ours.keys.done(round_)), 0)) > 0:
            _log.warning(
                "nodes of job %r have finished; this node waits in case it is needed",
                ours.identity.run_id,
            )
            return
        yield from self._heartbeat.beat()  # the leader may have given it up before it came back
        yield from ours.change(
            lambda state: transitions.call(
                state, "arrived", ours.me, "", by=ours.me, from_round=round_
            )
        )

    def _makes_full(self, running: JobState) -> Routine[bool]:
        """Whether as many nodes are there, with those that wait, as a round may have."""
        ours, world = self._ours, running.world
        room = ours.identity.max_nodes - (0 if world is None else world.nodes)
        # Most need not read who the others are.
        if (yield Add(tickets(ours.keys.joined(running.next_round)), 0)) < room:
            return False
        waiting = sorted((yield from ours.joined_nodes(running.next_round)))
        beats = yield MultiGet([ours.keys.beat(node) for node in waiting])
        leaves = self._heartbeat.read_leaves(dict(zip(waiting, beats, strict=True)))
        return len(waiting) - len(leaves) >= room

    def describe(self, state: JobState) -> str:
        """Describe what the node waits for while the job runs without it; on any thread."""
        job = f"job {self._ours.identity.run_id!r}"
        most = self._ours.identity.max_nodes
        if state.phase is JobPhase.SETTLING:
            return f"the next round of {job}, until it is known what failed first"
        if (
            state.phase is not JobPhase.RUNNING
            or state.world is None
            or self._ours.is_member(state)
        ):
            return f"the next round of {job}"
        if state.world.nodes >= most:
            return f"a place in {job}, which is full"
        if self._asked_in == state.round:
            return f"a place in {job}; some of its nodes have finished"
        left = self._time_left(state.round)
        if left is None:
            return f"the next round of {job}"
        when = f"in {max(left, 0.0):.0f} s or " if left < LONGEST else ""
        return f"the next round of {job}, {when}as soon as {most} nodes have come"
