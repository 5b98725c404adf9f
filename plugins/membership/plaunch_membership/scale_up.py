"""Ends a running round that has room, so that this node gets a place."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch.durations import LONGEST

from plaunch_membership import transitions
from plaunch_membership.keys import tickets
from plaunch_membership.operations import Add, MultiGet, Routine
from plaunch_membership.state import JobEventKind, JobPhase

if TYPE_CHECKING:
    from plaunch_membership.heartbeat import HeartbeatMonitor
    from plaunch_membership.membership import Membership
    from plaunch_membership.state import JobState

_log = logging.getLogger("plaunch")


class ScaleUpRequest:
    """Plans when to end a running round that has room for this node.

    All workers stop then, so other nodes are given time to arrive as well. The node that arrived
    first ends the round; a node that fills it ends it at once. A round in which nodes have already
    finished is not ended.

    Args:
        membership: this node's membership.
        heartbeat: shows that this node is alive, and which of the waiting nodes are.
    """

    def __init__(self, membership: Membership, heartbeat: HeartbeatMonitor) -> None:
        self._membership = membership
        self._heartbeat = heartbeat
        self._planned: tuple[int, float] | None = None  # a round with room, and when to end it
        self._asked_in: int | None = None  # the last round that it has ended, or must not end

    def reset(self) -> None:
        """Forget all plans. Called when the node enters another job."""
        self._planned = self._asked_in = None

    @property
    def alarm(self) -> float | None:
        """When `is_due` may become true, on the membership's clock; None: not by time alone."""
        return None if self._planned is None else self._planned[1]

    def is_due(self, state: JobState) -> bool:
        """Whether the running round has room, and it is time to end it or to plan that."""
        if (
            state.phase is not JobPhase.RUNNING
            or state.world is None
            or state.world.nodes >= self._membership.identity.max_nodes
            or self._asked_in == state.round
        ):
            return False
        left = self._time_left(state.round)
        return left is None or left <= 0

    def _time_left(self, round_: int) -> float | None:
        """Seconds until this node ends the round; None if that is not planned yet."""
        if self._planned is None or self._planned[0] != round_:
            return None
        return self._planned[1] - self._membership.clock()

    def ask(self, running: JobState) -> Routine[None]:
        """Plan to end a round that has room, or end it if it is time."""
        membership, round_ = self._membership, running.round
        # This node has ended the last round and was left out of the next: do not end it at once.
        is_left_out = self._asked_in == round_ - 1
        if self._planned is None or self._planned[0] != round_:
            patience = membership.timing.arrival_patience
            if is_left_out:
                patience = max(patience, membership.timing.keep_alive_interval)
            self._planned = (round_, membership.clock() + patience)
        if (
            membership.clock() < self._planned[1]
            and not membership.is_member(running)
            and (is_left_out or not (yield from self._makes_full(running)))
        ):
            return
        self._asked_in = round_
        if (yield Add(tickets(membership.keys.done(round_)), 0)) > 0:
            _log.warning(
                "nodes of job %r have finished; this node waits in case it is needed",
                membership.identity.run_id,
            )
            return
        yield from self._heartbeat.beat()  # the leader may count this node as lost
        yield from membership.change(
            lambda state: transitions.end_round(
                state, JobEventKind.ARRIVED, membership.me, "", by=membership.me, from_round=round_
            )
        )

    def _makes_full(self, running: JobState) -> Routine[bool]:
        """Whether the waiting nodes would fill the round."""
        membership, world = self._membership, running.world
        room = membership.identity.max_nodes - (0 if world is None else world.nodes)
        joined = membership.part.joined
        # Only the node that may fill the round reads the records of the others.
        if joined is None or joined[0] != running.next_round or joined[1] < room:
            return False
        waiting = sorted((yield from membership.joined_nodes(running.next_round)))
        beats = yield MultiGet([membership.keys.beat(node) for node in waiting])
        leaves = self._heartbeat.read_leaving(dict(zip(waiting, beats, strict=True)))
        return len(waiting) - len(leaves) >= room

    def describe(self, state: JobState) -> str:
        """Describe what the node waits for while the job runs without it. Thread-safe."""
        job = f"job {self._membership.identity.run_id!r}"
        most = self._membership.identity.max_nodes
        if state.phase is JobPhase.SETTLING:
            return f"the next round of {job}; the nodes report their failures"
        if (
            state.phase is not JobPhase.RUNNING
            or state.world is None
            or self._membership.is_member(state)
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
