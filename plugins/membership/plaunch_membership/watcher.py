"""The routine that reads: it goes through the states of the job, and tells the agent."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from plaunch.rendezvous import ChangeKind, MembershipChange, WorldRanks

from plaunch_membership.node import RoundPlace
from plaunch_membership.operations import MultiGet, Routine, Wait
from plaunch_membership.state import JobEvent, JobPhase, JobState, World, host_of, verdict_error

if TYPE_CHECKING:
    from plaunch_membership.keys import Keys
    from plaunch_membership.membership import Membership
    from plaunch_membership.records import Record

_log = logging.getLogger("plaunch")

_SLICE = 5.0  # seconds after which a wait for the next state begins anew

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


class Watcher:
    """A node's second routine, for one incarnation of the job."""

    def __init__(self, ours: Membership) -> None:
        self._ours = ours

    def watch(self) -> Routine[None]:
        """Go through the states of the job, one after the other, until it is over.

        Raises:
            RendezvousStateError: the store holds something else.
        """
        job = self._ours.job
        incarnation, keys, state = job.incarnation, job.keys, job.state
        while state is not None and incarnation == self._ours.job.incarnation:
            if state.has_ended:
                self._see_end(incarnation, state)
                return
            key = keys.state(state.version + 1)
            value = yield Wait(key, _SLICE)
            if value is None:
                continue
            state = JobState.from_record(self._ours.codec.decode(key, value), state.version + 1)
            slot = yield from self._find_slot(keys, state)
            self._enter(incarnation, state, value, slot)
            if state.event.kind == "broadcast" and self._ours.is_member(self._ours.state):
                name, _, text = state.event.reason.partition(" ")
                self._ours.listeners.get(name, _hear_nothing)(text)

    def _find_slot(self, keys: Keys, state: JobState) -> Routine[Record | None]:
        """The outcome of this node's ticket in a round that was just formed."""
        world, joined = state.world, self._ours.part.joined
        if (
            state.event.kind != "formed"
            or world is None
            or joined is None
            or joined[0] != world.round
            or joined[1] > world.tickets
        ):
            return None
        key = keys.slot(world.round, world.term, joined[1])
        value, following = None, [keys.state(state.version + 1)]
        while value is None:
            value = yield Wait(key, _SLICE)
            if value is None and (yield MultiGet(following))[0] is not None:
                return None  # this node was away so long that the round is deleted
        return self._ours.codec.decode(key, value)

    def _enter(self, incarnation: int, state: JobState, value: bytes, slot: Record | None) -> None:
        """Take note of another state of an incarnation, if that is still the present one."""
        ours = self._ours
        with ours.lock:
            if incarnation != ours.job.incarnation:
                return
            was_member = ours.is_member(ours.state)
            ours.job = replace(ours.job, state=state, state_record=value)
            if state.verdict is not None:
                ours.news.verdict = state.verdict  # before anybody is told that there is one
            if state.event.kind == "formed":
                ours.part.notices.clear()  # there are other workers
            if state.event.kind == "refused" and state.event.node == ours.me:
                ours.refuse(state.event.reason)
            if state.event.kind == "arrived":
                # Whatever the last look has shown: it has just said that it is there.
                lost = ours.peers.lost.items()
                ours.peers.lost = {node: why for node, why in lost if node != state.event.node}
            if state.event.kind == "left":
                ours.peers.gone[state.event.node] = state.event.reason
            if slot is not None and state.world is not None:
                self._take_place(state, state.world, slot)
            elif was_member:
                ours.remember(state)
                if ours.part.is_active:
                    self._tell_agent(state)
                elif state.event.kind == "lost":
                    ours.news.losses.append(_change_of(state.event, ChangeKind.LOST))
            ours.lock.notify_all()
        ours.nudge()

    def _take_place(self, state: JobState, world: World, slot: Record) -> None:
        rank = slot.integer("rank", low=-1)
        if rank < 0:
            return  # a spare, until there is a place
        ours, part = self._ours, self._ours.part
        part.place = RoundPlace(
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
        ours.remember(state)
        ours.news.take()  # a new round makes them pointless
        part.wants_round = part.has_succeeded = False
        part.succeeded = {}
        part.is_active = True

    def _tell_agent(self, state: JobState) -> None:
        ours, part, event = self._ours, self._ours.part, state.event
        kind = _CHANGES.get(event.kind)
        if kind is ChangeKind.NOTICE and part.notices.pop(event.signum, None) is not None:
            return  # this node has passed it on by itself
        if event.kind == "formed":
            # The others have formed a round without this node.
            part.is_active = False
            reason = f"the others have gone on without this node: {state.reason or 'it was away'}"
            ours.news.add(MembershipChange(ChangeKind.LOST, ours.identity.host, reason))
            return
        is_own = event.node == ours.me and event.kind in _OWN
        if kind is None or is_own:
            return
        if kind in (ChangeKind.LEFT, ChangeKind.LOST) and state.phase is not JobPhase.FORMING:
            return  # a spare went, and the round goes on
        ours.news.add(_change_of(event, kind))

    def _see_end(self, incarnation: int, state: JobState) -> None:
        ours = self._ours
        with ours.lock:
            if incarnation != ours.job.incarnation:
                return
            if state.phase is JobPhase.REPLACED:
                ours.lose_job(f"the job starts again: {state.event.reason}")
                _log.warning("job %r starts again: %s", ours.identity.run_id, state.event.reason)
            elif state.verdict is not None:
                ours.news.verdict = state.verdict
                if ours.part.wants_round:
                    ours.news.error = verdict_error(ours.identity.run_id, state.verdict)
            ours.lock.notify_all()
        ours.nudge()


def _change_of(event: JobEvent, kind: ChangeKind) -> MembershipChange:
    index = event.index if event.index >= 0 else None
    return MembershipChange(kind, host_of(event.node), event.reason, event.signum, index)


def _hear_nothing(text: str) -> None:
    """Nobody listens to broadcasts of that name."""
