"""The routine that writes: it joins, sends heartbeats, and carries out what others want."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch_membership import transitions
from plaunch_membership.heartbeat import Heartbeat
from plaunch_membership.keys import entry, tickets
from plaunch_membership.node import NodeRecord
from plaunch_membership.operations import Add, Routine, Set, Sleep
from plaunch_membership.room import RoomRequest
from plaunch_membership.state import JobPhase
from plaunch_membership.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_membership.job_lookup import JobLookup
    from plaunch_membership.membership import Membership
    from plaunch_membership.shared import Request

_log = logging.getLogger("plaunch")

_LEAST_SLEEP = 0.001  # seconds; a sum of times may be a little less than it should be


class Writer:
    """A node's first routine.

    Args:
        ours: this node's membership.
        lookup: finds the job.
        hold_port: finds a port for the workers' store, and keeps it from others.
    """

    def __init__(self, ours: Membership, lookup: JobLookup, hold_port: Callable[[], int]) -> None:
        self._ours = ours
        self._lookup = lookup
        self._hold_port = hold_port
        self._heartbeat = Heartbeat(ours)
        self.statements = Statements(ours, self._heartbeat)
        self.room = RoomRequest(ours, self._heartbeat)
        self._offered = -1  # the version of the state in which it has offered to lead

    def write(self, opened: Callable[[], None]) -> Routine[None]:
        """Be a member of the job until told to go; calls `opened` when there is a state to watch.

        Raises:
            RendezvousClosedError: the job is over, or refuses this node.
            RendezvousStateError: the store holds something else.
        """
        while True:
            yield from self._lookup.open()
            self._heartbeat.begin_anew()
            self.statements.begin_anew()
            self.room.begin_anew()
            self._offered = -1
            yield from self._recall()
            yield from self._heartbeat.beat()
            opened()
            if (yield from self._serve()):
                return
            yield from self._heartbeat.end()

    def _recall(self) -> Routine[None]:
        """Tell a job that began anew without this node what it knew before."""
        ours = self._ours
        attempt, excluded = ours.attempt, ours.excluded
        yield from ours.change(
            lambda state: transitions.recall(state, attempt, excluded, by=ours.me)
        )

    def _serve(self) -> Routine[bool]:
        """Do what is to be done, when it is; True if that was all, False to open again."""
        ours, interval = self._ours, self._ours.timing.keep_alive_interval
        due = ours.clock() + interval
        while True:
            if ours.must_reopen and not ours.part.leaving:
                return ours.requests.is_closing
            # Read before looking: an alarm that comes meanwhile is slept for, not missed.
            now = ours.clock()
            routine = self._next_routine()
            if routine is not None:
                yield from routine()
                continue
            if ours.requests.is_closing:
                return True
            if now >= due:
                due = now + interval
                yield from self._heartbeat.beat()
                yield from self._heartbeat.look()
                continue
            alarms = (self.statements.alarm, self.room.alarm)
            alarm = min((at for at in alarms if at is not None and at > now), default=due)
            yield Sleep(max(_LEAST_SLEEP, min(due, alarm) - now))

    def _next_routine(self) -> Request | None:  # noqa: PLR0911 - a list of cases
        """Do what was requested, or what follows from the state of the job."""
        ours, part = self._ours, self._ours.part
        with ours.lock:
            state = ours.state
            request = ours.requests.next()
            if request is not None or state is None:
                return request
            is_going = ours.requests.is_closing or bool(part.leaving)
            if not state.has_ended and is_going:
                return None
            if not state.leader and not state.has_ended and self._offered != state.version:
                # Once: the state stays as it is until the watcher sees the next one.
                self._offered = state.version
                return lambda: self._heartbeat.take_lead("", "nobody led")
            if self.statements.are_expected(state):
                return self.statements.due(state)
            if state.has_ended or not part.wants_round or ours.is_excluded:
                return None
            if part.joined is None or part.joined[0] != state.next_round:
                return lambda: self._join(state.next_round)
            return (lambda: self.room.ask(state)) if self.room.is_due(state) else None

    def _join(self, round_: int) -> Routine[None]:
        """Be on the log of those who want to be in a round."""
        ours, identity = self._ours, self._ours.identity
        log = ours.keys.joined(round_)
        port = self._hold_port()
        ticket = yield Add(tickets(log))
        with ours.lock:
            ours.part.joined = (round_, ticket)
        before = ours.part.place or ours.part.former_place
        record = NodeRecord(
            ticket=ticket,
            node=identity.node,
            host=identity.host,
            index=identity.job.node_rank,
            previous=None if before is None else before.rank,
            previous_round=None if before is None else before.round,
            is_host=identity.is_host,
            local_world_size=identity.job.local_world_size,
            role=identity.job.role,
            pid=identity.pid,
            address=identity.address,
            port=port,
            stop_timeout=identity.job.stop_timeout,
        )
        key = entry(log, ticket)
        yield Set(key, ours.codec.encode(key, record.to_record()))
        with ours.lock:
            # It may be in the present round by now.
            state = ours.state if ours.part.wants_round else None
        if (
            state is not None
            and state.phase is JobPhase.RUNNING
            and state.world is not None
            and state.world.nodes >= identity.max_nodes
            # Or it has failed in this round, and its watcher has yet to read that.
            and not ours.is_member(state)
        ):
            _log.warning(
                "job %r runs on %d nodes, which is its maximum; this node waits for a place",
                identity.run_id,
                state.world.nodes,
            )
