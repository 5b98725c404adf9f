"""The routine that writes: it joins, sends heartbeats, and processes requests."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch.durations import bounded

from plaunch_membership import transitions
from plaunch_membership.heartbeat import HeartbeatMonitor
from plaunch_membership.node import NodeRecord
from plaunch_membership.node_reports import NodeReports
from plaunch_membership.operations import Append, Batch, Routine, Sleep
from plaunch_membership.restarts import restore_decisions
from plaunch_membership.scale_up import ScaleUpRequest
from plaunch_membership.state import JobPhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_membership.job_lookup import JobLookup
    from plaunch_membership.membership import Membership
    from plaunch_membership.shared import Request

_log = logging.getLogger("plaunch")

_MIN_SLEEP = 0.001  # seconds; rounding may make the remaining time slightly too short


class WriterRoutine:
    """A node's first routine.

    Args:
        membership: this node's membership.
        lookup: finds the job.
        hold_port: reserves a port for the workers' store and returns it.
    """

    def __init__(
        self, membership: Membership, lookup: JobLookup, hold_port: Callable[[], int]
    ) -> None:
        self._membership = membership
        self._lookup = lookup
        self._hold_port = hold_port
        self._heartbeat = HeartbeatMonitor(membership)
        self.reports = NodeReports(membership, self._heartbeat, lookup)
        self.scale_up = ScaleUpRequest(membership, self._heartbeat)
        self._beat_at = 0.0  # when the next heartbeat is due, on the membership's clock
        self._offered = -1  # the version of the state in which it last offered to lead
        self._waits_since: int | None = None  # its last round when it was logged that it waits
        self.is_beat_due = False  # set by any thread, to send and check heartbeats early

    def write(self, opened: Callable[[], None]) -> Routine[None]:
        """Take part in the job until the last request.

        Calls `opened` when there is a state to watch, also after the job has started again.

        Raises:
            RendezvousClosedError: the job is over, or refuses this node.
            RendezvousStateError: the store holds an invalid record.
        """
        membership = self._membership
        while True:
            yield from self._lookup.open()
            self._heartbeat.reset()
            self.reports.reset()
            self.scale_up.reset()
            self._offered = -1
            self._beat_at = membership.clock()
            yield from self._recall()
            opened()
            if (yield from self._serve()):
                return
            yield from self._heartbeat.end()

    def _recall(self) -> Routine[None]:
        """Restore what this node knew in a job that has started again without it."""
        membership, memory = self._membership, self._membership.memory
        state = membership.state
        if state is not None and not state.has_ended and memory.is_of_former_member(state):
            yield from self._beat()  # first: the leader watches nodes that have returned
            yield from restore_decisions(membership)
            log = membership.keys.returned
            record = {
                "node": membership.me,
                "host": membership.identity.host,
                "round": memory.round,
                "stop_timeout": bounded(membership.identity.settings.stop_timeout),
            }
            yield Append(log, membership.codec.encode(log, record))
        yield from membership.change(
            lambda state: transitions.recall(state, memory, by=membership.me)
        )

    def _serve(self) -> Routine[bool]:
        """Process what is due; True after the last request, False to look for the job again."""
        membership = self._membership
        while True:
            if membership.must_reopen and not membership.part.leaving:
                return membership.requests.is_closing
            # Read before `_next_routine`: an alarm that fires meanwhile shortens the sleep and is
            # not missed.
            now = membership.clock()
            routine = self._next_routine()
            if routine is not None:
                yield from routine()
                continue
            if membership.requests.is_closing:
                return True
            if now >= self._beat_at or self.is_beat_due:
                self.is_beat_due = False
                yield from self._beat()
                yield from self._heartbeat.check()
                continue
            alarms = (self.reports.alarm, self.scale_up.alarm)
            alarm = min((at for at in alarms if at is not None and at > now), default=self._beat_at)
            yield Sleep(max(_MIN_SLEEP, min(self._beat_at, alarm) - now))

    def _beat(self) -> Routine[None]:
        self._beat_at = self._membership.clock() + self._membership.timing.keep_alive_interval
        yield from self._heartbeat.beat()

    def _next_routine(self) -> Request | None:  # noqa: PLR0911 - a list of cases
        """Return the next request, or what the state of the job requires."""
        membership, part = self._membership, self._membership.part
        with membership.lock:
            state = membership.state
            request = membership.requests.next()
            if request is not None or state is None:
                return request
            is_going = membership.requests.is_closing or bool(part.leaving)
            if not state.has_ended and is_going:
                return None
            if not state.leader and not state.has_ended and self._offered != state.version:
                # Only once, because the state is the same until the watcher reads the next one.
                self._offered = state.version
                return lambda: self._heartbeat.take_lead("", "there was no leader")
            if self.reports.are_expected(state):
                return self.reports.due(state)
            if state.has_ended or not part.wants_round:
                return None
            if membership.is_excluded:
                is_awaited = membership.is_member(state) and state.phase is JobPhase.FORMING
                has_joined = part.joined is not None and part.joined[0] >= state.next_round
                return self.reports.end_stop if is_awaited and not has_joined else None
            if part.joined is None or part.joined[0] != state.next_round:
                return lambda: self._join(state.next_round)
            return (lambda: self.scale_up.ask(state)) if self.scale_up.is_due(state) else None

    def _join(self, round_: int) -> Routine[None]:
        """Append this node to the log of a round, and send a heartbeat."""
        membership, identity = self._membership, self._membership.identity
        log = membership.keys.joined(round_)
        port = self._hold_port()
        with membership.lock:
            # Before: the watcher may read that the round is formed before this thread goes on.
            membership.part.joined = (round_, 0)
        before = membership.part.place or membership.part.former_place
        last_round = -1 if before is None else before.round
        record = NodeRecord(
            ticket=0,
            node=identity.node,
            host=identity.host,
            index=identity.job.node_rank,
            previous=None if before is None else before.rank,
            previous_round=None if before is None else before.round,
            is_host=membership.is_host,
            local_world_size=identity.settings.local_world_size,
            role=identity.settings.role,
            pid=identity.pid,
            address=identity.address,
            port=port,
            stop_timeout=identity.settings.stop_timeout,
        )
        value = membership.codec.encode(log, record.to_record())
        self._beat_at = membership.clock() + membership.timing.keep_alive_interval
        # The heartbeat comes first: the leader watches a node once it has read its record.
        lease, ticket = yield Batch((self._heartbeat.next(), Append(log, value)))
        self._heartbeat.note_sent(lease)
        with membership.lock:
            membership.part.joined = (round_, ticket)
            # It may have got a place by now.
            state = membership.state if membership.part.wants_round else None
        if (
            state is not None
            and state.phase is JobPhase.RUNNING
            and state.world is not None
            and state.world.nodes >= identity.max_nodes
            # Otherwise it has failed in this round, and its watcher has not read that yet.
            and not membership.is_member(state)
            and self._waits_since != last_round  # it joins the log of each round, but waits once
        ):
            self._waits_since = last_round
            _log.warning(
                "job %r runs on %d nodes, which is its maximum; this node waits for a place",
                identity.run_id,
                state.world.nodes,
            )
