"""The routine that reads: it goes through the states of the job, and tells the agent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch.rendezvous.api import ChangeKind, MembershipChange
from plaunch.rendezvous.job import WorldRanks
from plaunch.rendezvous.node import Place
from plaunch.rendezvous.operations import MultiGet, Routine, Wait
from plaunch.rendezvous.state import Phase, State, World, host_of, verdict_error

if TYPE_CHECKING:
    from plaunch.rendezvous.membership import Membership
    from plaunch.rendezvous.records import Record
    from plaunch.rendezvous.roll import Keys

_log = logging.getLogger("plaunch")

_SLICE = 5.0  # seconds after which a wait for the next state begins anew
_SECOND_LOOK = 0.3  # seconds that an agent has to find out whether its own workers failed as well

_CHANGES = {
    "arrived": ChangeKind.ARRIVED,
    "left": ChangeKind.LEFT,
    "lost": ChangeKind.LOST,
    "failed": ChangeKind.FAILED,
    "requested": ChangeKind.RESTART,
    "notice": ChangeKind.NOTICE,
    "ended": ChangeKind.CLOSED,
}
_OWN = frozenset({"notice", "failed", "left", "requested"})  # what a node need not be told


class Follower:
    """A node's second routine, for one incarnation of the job."""

    def __init__(self, ours: Membership) -> None:
        self._ours = ours

    def follow(self) -> Routine[None]:
        """Go through the states of the job, one after the other, until it is over.

        Raises:
            RendezvousStateError: the store holds something else.
        """
        with self._ours.lock:
            incarnation, keys = self._ours.incarnation, self._ours.keys
            state = self._ours.state
        while state is not None and incarnation == self._ours.incarnation:
            if state.phase in (Phase.OVER, Phase.REPLACED):
                self._see_end(incarnation, state)
                return
            key = keys.state(state.version + 1)
            value = yield Wait(key, _SLICE)
            if value is None:
                continue
            state = State.from_record(self._ours.codec.decode(key, value), state.version + 1)
            slot = yield from self._find_slot(keys, state)
            self._enter(incarnation, state, value, slot)

    def _find_slot(self, keys: Keys, state: State) -> Routine[Record | None]:
        """What became of this node's ticket in a round that was just formed."""
        world, joined = state.world, self._ours.joined
        if (
            state.event.kind != "formed"
            or world is None
            or joined is None
            or joined[0] != world.round
            or joined[1] > world.roll
        ):
            return None
        key = keys.slot(world.round, world.term, joined[1])
        value, following = None, [keys.state(state.version + 1)]
        while value is None:
            value = yield Wait(key, _SLICE)
            if value is None and (yield MultiGet(following))[0] is not None:
                return None  # this node was away so long that the round is deleted
        return self._ours.codec.decode(key, value)

    def _enter(self, incarnation: int, state: State, value: bytes, slot: Record | None) -> None:
        """Take note of another state of an incarnation, if that is still the present one."""
        with self._ours.lock:
            if incarnation != self._ours.incarnation:
                return
            was_member = self._ours.is_member(self._ours.state)
            self._ours.state, self._ours.state_record = state, value
            if state.verdict is not None:
                self._ours.verdict = state.verdict  # before anybody is told that there is one
            if state.phase is not Phase.SETTLING:
                self._ours.settle_at = None
            if state.event.kind == "formed":
                self._ours.notices.clear()  # there are other workers
            if state.event.kind == "refused" and state.event.node == self._ours.me:
                self._ours.refuse(state.event.reason)
            if state.event.kind == "arrived":
                # Whatever the last look has shown: it has just said that it is there.
                self._ours.lost = {
                    node: why for node, why in self._ours.lost.items() if node != state.event.node
                }
            if state.event.kind == "left":
                self._ours.gone[state.event.node] = state.event.reason
            if slot is not None and state.world is not None:
                self._take_place(state, state.world, slot)
            elif was_member:
                self._ours.attempt = max(self._ours.attempt, state.attempt)
                if state.phase is Phase.SETTLING and self._ours.settled != state.round:
                    patience = _SECOND_LOOK if self._ours.is_active else 0.0
                    self._ours.settle_at = self._ours.clock() + patience
                if self._ours.is_active:
                    self._tell_change(state)
            self._ours.lock.notify_all()
        self._ours.nudge()

    def _take_place(self, state: State, world: World, slot: Record) -> None:
        rank = slot.integer("rank", low=-1)
        if rank < 0:
            return  # a spare, until there is a place
        self._ours.place = Place(
            round=world.round,
            attempt=state.attempt,
            rank=rank,
            nodes=world.nodes,
            ranks=WorldRanks(
                first_global=slot.integer("first", low=0),
                world_size=slot.integer("size", low=1),
                first_role=slot.integer("role_first", low=0),
                role_world_size=slot.integer("role_size", low=1),
            ),
            master_addr=world.master_addr,
            master_port=world.master_port,
            reason=state.reason,
        )
        self._ours.attempt = max(self._ours.attempt, state.attempt)
        self._ours.clear_changes()
        self._ours.wants_round = self._ours.has_succeeded = False
        self._ours.is_active = True

    def _tell_change(self, state: State) -> None:
        event = state.event
        kind = _CHANGES.get(event.kind)
        if kind is ChangeKind.NOTICE and self._ours.notices.pop(event.signum, None) is not None:
            return  # this node has passed it on by itself
        if event.kind == "formed":
            # The others have formed a round without this node.
            self._ours.is_active = False
            reason = f"the others have gone on without this node: {state.reason or 'it was away'}"
            self._ours.tell(MembershipChange(ChangeKind.LOST, self._ours.identity.host, reason))
            return
        is_own = event.node == self._ours.me and event.kind in _OWN
        if kind is None or is_own:
            return
        if kind in (ChangeKind.LEFT, ChangeKind.LOST) and state.phase is not Phase.FORMING:
            return  # a spare went, and the round goes on
        self._ours.tell(MembershipChange(kind, host_of(event.node), event.reason, event.signum))

    def _see_end(self, incarnation: int, state: State) -> None:
        with self._ours.lock:
            if incarnation != self._ours.incarnation:
                return
            if state.phase is Phase.REPLACED:
                self._ours.lose_job(f"the job begins anew: {state.event.reason}")
                _log.warning(
                    "job %r begins anew: %s", self._ours.identity.run_id, state.event.reason
                )
            elif state.verdict is not None:
                self._ours.verdict = state.verdict
                if self._ours.wants_round:
                    self._ours.error = verdict_error(self._ours.identity.run_id, state.verdict)
            self._ours.lock.notify_all()
        self._ours.nudge()
