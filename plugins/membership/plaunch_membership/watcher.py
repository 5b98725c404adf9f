"""The routine that reads the states of the job and notifies the agent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch.rendezvous import ChangeKind, MembershipChange, WorldRanks

from plaunch_membership.node import RoundPlace
from plaunch_membership.operations import MultiGet, Routine, Wait, WaitThenGet
from plaunch_membership.state import (
    JobEvent,
    JobEventKind,
    JobPhase,
    JobState,
    World,
    host_of,
    verdict_error,
)

if TYPE_CHECKING:
    from plaunch_membership.keys import Keys
    from plaunch_membership.membership import Membership
    from plaunch_membership.records import StoreRecord

_log = logging.getLogger("plaunch")

_WAIT_TIMEOUT = 5.0  # seconds of one wait for the next state
_LONG_WAIT = 60.0  # seconds, if the store notices lost connections

_CHANGES = {
    JobEventKind.ARRIVED: ChangeKind.ARRIVED,
    JobEventKind.LEFT: ChangeKind.LEFT,
    JobEventKind.LOST: ChangeKind.LOST,
    JobEventKind.FAILED: ChangeKind.FAILED,
    JobEventKind.REQUESTED: ChangeKind.RESTART,
    JobEventKind.NOTICE: ChangeKind.NOTICE,
    JobEventKind.ENDING: ChangeKind.ENDING,
    JobEventKind.ENDED: ChangeKind.CLOSED,
}
_OWN = frozenset(  # not reported to the node itself
    {JobEventKind.NOTICE, JobEventKind.FAILED, JobEventKind.LEFT, JobEventKind.REQUESTED}
)


class WatcherRoutine:
    """The routine of every node that reads the states of one incarnation of the job."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def watch(self) -> Routine[None]:
        """Read the states of the job one after the other until it is over.

        Raises:
            RendezvousStateError: the store holds an invalid record.
        """
        job = self._membership.job
        incarnation, keys, state = job.incarnation, job.keys, job.state
        timeout = _LONG_WAIT if self._membership.absence_is_loss else _WAIT_TIMEOUT
        while state is not None and incarnation == self._membership.job.incarnation:
            if state.has_ended:
                self._see_end(incarnation, state)
                return
            key = keys.state(state.version + 1)
            place = following = None
            if state.phase is JobPhase.FORMING:
                # Slots are written before the state. What comes after that shows whether the round
                # is over already.
                own = keys.slot(state.round, state.term, self._membership.me)
                others = (own, keys.state(state.version + 2))
                value, place, following = yield WaitThenGet(key, timeout, others)
            else:
                value = yield Wait(key, timeout)
            if value is None:
                continue
            state = self._read_state(key, value, state.version + 1)
            slot = yield from self._read_slot(keys, state, place, is_last=following is None)
            self._enter(incarnation, state, value, slot)
            if state.event.kind is JobEventKind.BROADCAST and self._membership.is_member(
                self._membership.state
            ):
                listener = self._membership.listeners.get(state.event.listener, _ignore)
                listener(state.event.reason)

    def _read_slot(
        self, keys: Keys, state: JobState, value: bytes | None, *, is_last: bool
    ) -> Routine[StoreRecord | None]:
        """Return this node's place in a round that was just formed; None if it has none.

        Args:
            keys: of the job.
            state: the state that was read.
            value: the slot of this node, which was read with it.
            is_last: whether no later state was read with it.
        """
        membership, world = self._membership, state.world
        if state.event.kind is not JobEventKind.FORMED or world is None or value is None:
            return None
        joined = membership.part.joined
        if joined is None or joined[0] != world.round:
            return None
        if not is_last and (yield from self._is_over(keys, state)):
            return None  # this node was away: the others have begun another round, or ended
        return membership.codec.decode(keys.slot(world.round, world.term, membership.me), value)

    def _is_over(self, keys: Keys, formed: JobState) -> Routine[bool]:
        """Whether a later state has ended the round that `formed` began."""
        state = formed
        while state.phase in (JobPhase.RUNNING, JobPhase.SETTLING):
            key = keys.state(state.version + 1)
            (value,) = yield MultiGet([key])
            if value is None:
                return False
            state = self._read_state(key, value, state.version + 1)
        return True

    def _read_state(self, key: str, value: bytes, version: int) -> JobState:
        return JobState.from_record(self._membership.codec.decode(key, value), version)

    def _enter(
        self, incarnation: int, state: JobState, value: bytes, slot: StoreRecord | None
    ) -> None:
        """Process a new state, if its incarnation is still the current one."""
        membership = self._membership
        with membership.lock:
            if incarnation != membership.job.incarnation:
                return
            was_member = membership.is_member(membership.state)
            membership.enter_state(state, value)
            if slot is not None and state.world is not None:
                self._take_place(state, state.world, slot)
            elif was_member:
                membership.memory.note(state, membership.part.place)
                if membership.part.is_active:
                    self._notify_agent(state)
                elif state.event.kind is JobEventKind.LOST:
                    membership.news.losses.append(_change_of(state.event, ChangeKind.LOST))
            membership.lock.notify_all()
        membership.nudge()

    def _take_place(self, state: JobState, world: World, slot: StoreRecord) -> None:
        membership, part = self._membership, self._membership.part
        part.place = RoundPlace(
            round=world.round,
            attempt=state.attempt,
            rank=slot.integer("rank", low=0),
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
            decision=state.decision,
        )
        membership.memory.note(state, membership.part.place)
        membership.news.take()  # changes of the last round
        part.wants_round = part.has_succeeded = False
        part.succeeded = {}
        part.is_active = True

    def _notify_agent(self, state: JobState) -> None:
        membership, part, event = self._membership, self._membership.part, state.event
        kind = _CHANGES.get(event.kind)
        if kind is ChangeKind.NOTICE and part.notices.pop(event.signum, None) is not None:
            return  # sent by this node
        if event.kind is JobEventKind.FORMED:
            # The others have formed a round without this node.
            part.is_active = False
            reason = f"the others have continued without this node: {state.why or 'it was away'}"
            membership.news.add(MembershipChange(ChangeKind.LOST, membership.identity.host, reason))
            return
        is_own = event.node == membership.me and event.kind in _OWN
        if kind is None or is_own:
            return
        if kind in (ChangeKind.LEFT, ChangeKind.LOST) and state.phase is not JobPhase.FORMING:
            return  # a spare left; the round continues
        membership.news.add(_change_of(event, kind))

    def _see_end(self, incarnation: int, state: JobState) -> None:
        membership = self._membership
        with membership.lock:
            if incarnation != membership.job.incarnation:
                return
            if state.phase is JobPhase.REPLACED:
                membership.lose_job(f"the job starts again: {state.event.reason}")
                _log.warning(
                    "job %r starts again: %s", membership.identity.run_id, state.event.reason
                )
            elif state.verdict is not None:
                membership.news.verdict = state.verdict
                if membership.part.wants_round:
                    membership.news.error = verdict_error(membership.identity.run_id, state.verdict)
            membership.lock.notify_all()
        membership.nudge()


def _change_of(event: JobEvent, kind: ChangeKind) -> MembershipChange:
    index = event.index if event.index >= 0 else None
    return MembershipChange(kind, host_of(event.node), event.reason, event.signum, index)


def _ignore(text: str) -> None:
    """The listener for names that have none."""
