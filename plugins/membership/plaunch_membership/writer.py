"""The routine that writes: it joins, beats, and carries out what the agent wants."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch.rendezvous import MAX_NAME

from plaunch_membership import state as states
from plaunch_membership.failures import cut, summarize
from plaunch_membership.heartbeat import Heartbeat
from plaunch_membership.operations import Add, MultiGet, Routine, Set, Sleep
from plaunch_membership.records import MAX_REASON, RecordError
from plaunch_membership.shared_log import NodeRecord, entry, tickets
from plaunch_membership.state import JobPhase, JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from plaunch.rendezvous import JobFailure

    from plaunch_membership.job_lookup import JobLookup
    from plaunch_membership.membership import Membership

_log = logging.getLogger("plaunch")

_LEAST_SLEEP = 0.001  # seconds; a sum of times may be a little less than it should be
_LINGER = 1.0  # seconds between two looks at who has said good-bye, if nobody does
_MOST_NAMED = 16  # nodes
_SAID_AFTER = 2.0  # seconds of lingering after which it is said for whom


class Writer:
    """A node's first routine, `write`; the others are what it may be asked to do.

    Args:
        ours: this node's part in the job.
        lookup: finds the job.
        hold_port: finds a port for the workers' store, and keeps it from others.
    """

    def __init__(self, ours: Membership, lookup: JobLookup, hold_port: Callable[[], int]) -> None:
        self._ours = ours
        self._lookup = lookup
        self._hold_port = hold_port
        self._heartbeat = Heartbeat(ours)
        self._offered = -1  # the version of the state in which it has offered to lead

    def write(self, opened: Callable[[], None]) -> Routine[None]:
        """Be a member of the job until told to go; calls `opened` when there is a state to follow.

        Raises:
            RendezvousClosedError: the job is over, or refuses this node.
            RendezvousStateError: the store holds something else.
        """
        while True:
            yield from self._lookup.open()
            self._heartbeat.begin_anew()
            self._offered = -1
            yield from self._recall_attempt()
            yield from self._heartbeat.beat()
            opened()
            if (yield from self._serve()):
                return
            yield from self._heartbeat.end()

    def _recall_attempt(self) -> Routine[None]:
        """Tell a job that began anew without this node how many restarts were used before."""
        attempt = self._ours.attempt
        yield from self._ours.change(lambda state: states.recall(state, attempt, by=self._ours.me))

    def _serve(self) -> Routine[bool]:
        """Do what is to be done, when it is; True if that was all, False to open again."""
        interval = self._ours.timing.keep_alive_interval
        due = self._ours.clock() + interval
        while True:
            if self._ours.must_reopen and not self._ours.leaving:
                return self._ours.is_closing
            routine = self._next_routine()
            if routine is not None:
                yield from routine()
                continue
            if self._ours.is_closing:
                return True
            now = self._ours.clock()
            if now >= due:
                due = now + interval
                yield from self._heartbeat.beat()
                yield from self._heartbeat.look()
                continue
            settle_at, asks = self._ours.settle_at, self._ours.asks
            alarm = due if settle_at is None else min(due, settle_at)
            if asks is not None and asks[1] > now:
                alarm = min(alarm, asks[1])
            yield Sleep(max(_LEAST_SLEEP, alarm - now))

    def _next_routine(  # noqa: PLR0911 - a list of cases
        self,
    ) -> Callable[[], Routine[None]] | None:
        """What the agent wants, or what follows from the state of the job."""
        with self._ours.lock:
            if self._ours.wanted:
                wish = self._ours.wanted.popleft()
                return lambda: wish(self)
            state = self._ours.state
            if state is None:
                return None
            if state.phase is JobPhase.OVER:
                return None if self._ours.has_departed else self._depart
            if self._ours.is_closing or self._ours.leaving or state.phase is JobPhase.REPLACED:
                return None
            if not state.leader and self._offered != state.version:
                # Once: the state stays as it is until the watcher sees the next one.
                self._offered = state.version
                return lambda: self._heartbeat.take_lead("", "nobody led")
            if self._is_settling(state) and self._ours.settle_at is not None:
                if self._ours.clock() < self._ours.settle_at:
                    return None
                return lambda: self._settle(state.round, (), is_final=False)
            if not self._ours.wants_round:
                return None
            if self._ours.joined is None or self._ours.joined[0] != state.next_round:
                return lambda: self._join(state.next_round)
            if (
                state.phase is JobPhase.RUNNING
                and state.world is not None
                and state.world.nodes < self._ours.identity.max_nodes
                and self._ours.asked_in != state.round
                and not self._waits_for_others(state.round)
            ):
                return lambda: self._ask_in(state)
        return None

    def _is_settling(self, state: JobState) -> bool:
        return (
            state.phase is JobPhase.SETTLING
            and self._ours.place is not None
            and self._ours.place.round == state.round
            and self._ours.settled != state.round
        )

    def _join(self, round_: int) -> Routine[None]:
        """Be on the log of a round."""
        log = self._ours.keys.joined(round_)
        port = self._hold_port()
        ticket = yield Add(tickets(log))
        with self._ours.lock:
            self._ours.joined = (round_, ticket)
        identity = self._ours.identity
        before = self._ours.place or self._ours.former_place
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
        yield Set(key, self._ours.codec.encode(key, record.to_record()))
        with self._ours.lock:
            # It may be in the present round by now.
            state = self._ours.state if self._ours.wants_round else None
        if (
            state is not None
            and state.phase is JobPhase.RUNNING
            and state.world is not None
            and state.world.nodes >= identity.max_nodes
            # Or it has failed in this round, and its watcher has yet to read that.
            and not self._ours.is_member(state)
        ):
            _log.warning(
                "job %r runs on %d nodes, which is its maximum; this node waits for a place",
                identity.run_id,
                state.world.nodes,
            )

    def _waits_for_others(self, round_: int) -> bool:
        """Whether more nodes may come before the round is ended that has room for this one."""
        asks = self._ours.asks
        return asks is not None and asks[0] == round_ and self._ours.clock() < asks[1]

    def _ask_in(self, running: JobState) -> Routine[None]:
        """End a round that has room for this node, unless some nodes have finished already.

        The workers of all others stop then, so other nodes are given time to come as well. The time
        of who came first is over first, and who comes last need not wait if that makes it full.
        """
        ours, round_ = self._ours, running.round
        # It has asked, and the next round was formed without it all the same: not at once again.
        is_left_out = ours.asked_in == round_ - 1
        if ours.asks is None or ours.asks[0] != round_:
            patience = ours.timing.arrival_patience
            if is_left_out:
                patience = max(patience, ours.timing.keep_alive_interval)
            ours.asks = (round_, ours.clock() + patience)
        if (
            ours.clock() < ours.asks[1]
            and not ours.is_member(running)
            and (is_left_out or not (yield from self._makes_full(running)))
        ):
            return
        ours.asked_in = round_
        if (yield Add(tickets(ours.keys.done(round_)), 0)) > 0:
            _log.warning(
                "nodes of job %r have finished their part; this node waits in case it is needed",
                self._ours.identity.run_id,
            )
            return
        yield from self._heartbeat.beat()  # the leader may have given it up before it came back
        yield from self._ours.change(
            lambda state: states.call(
                state, "arrived", self._ours.me, "", by=self._ours.me, from_round=round_
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
        signs = yield MultiGet([ours.keys.beat(node) for node in waiting])
        leaves = self._heartbeat.read_leaves(dict(zip(waiting, signs, strict=True)))
        return len(waiting) - len(leaves) >= room

    def report(
        self, round_: int, failures: Sequence[JobFailure], *, is_final: bool
    ) -> Routine[None]:
        """Say that workers of a round have failed on this node."""
        yield from self._settle(round_, failures, is_final=is_final)
        what = failures[0].summary if failures else "workers failed"
        yield from self._ours.change(
            lambda state: states.fail(state, self._ours.me, what, from_round=round_)
        )

    def _settle(
        self, round_: int, failures: Iterable[JobFailure], *, is_final: bool
    ) -> Routine[None]:
        """Say who failed on this node in a round, once."""
        with self._ours.lock:
            if self._ours.settled == round_:
                return
            self._ours.settled = round_
            self._ours.settle_at = None
        told = summarize(failures).to_record()
        log = self._ours.keys.settled(round_)
        ticket: int = yield Add(tickets(log))
        key = entry(log, ticket)
        said = {"node": self._ours.me, "is_final": is_final}
        try:
            value = self._ours.codec.encode(key, {**said, **told})
        except RecordError as error:
            _log.warning("it is told without its failures: %s", error)
            value = self._ours.codec.encode(key, {**said, "failures": []})
        yield Set(key, value)

    def succeed(self, round_: int, nodes: int) -> Routine[None]:
        """Say that this node is done; the last one to say so finds the verdict."""
        ticket = yield from self._enrol(self._ours.keys.done(round_))
        if ticket < nodes:
            return
        if len((yield from self._ours.done_nodes(round_))) < nodes:
            return  # it was a ticket that nobody used; the last one is still to come
        yield from self._ours.find_success(round_)

    def leave(self, reason: str) -> Routine[None]:
        """Say that this node goes on purpose; once is enough."""
        with self._ours.lock:
            if self._ours.leaving:
                return
            self._ours.leaving = cut(reason, MAX_REASON) or "for no reason given"
            self._ours.wants_round = False
        yield from self._heartbeat.beat()

        def go(state: JobState) -> JobState | None:
            # Asked of each state: the others may have formed a round without this node by now. And
            # whoever is done may go without ending the round of those who are not.
            is_member = self._ours.is_member(state) and not self._ours.has_succeeded
            return states.leave(state, self._ours.me, reason, is_member=is_member)

        yield from self._ours.change(go)

    def _depart(self) -> Routine[None]:
        self._ours.has_departed = True
        yield from self._enrol(self._ours.keys.departures)

    def _enrol(self, log: str) -> Routine[int]:
        """Be on a log; the result is the ticket."""
        ticket: int = yield Add(tickets(log))
        key = entry(log, ticket)
        yield Set(key, self._ours.codec.encode(key, {"node": self._ours.me}))
        return ticket

    def linger(self, stays: Callable[[float, Collection[str]], bool]) -> Routine[None]:
        """Wait until everybody who was there has said good-bye.

        Args:
            stays: whether to go on, after so many seconds, for the sake of these nodes; some of
                them may have been lost, which those who are only paused are, too.
        """
        began = self._ours.clock()
        has_said = False
        state = self._ours.state
        if state is None or state.phase is not JobPhase.OVER:
            return
        expected = set((yield from self._ours.members(state)))
        for round_ in {state.round, state.next_round}:
            expected.update((yield from self._ours.joined_nodes(round_)))
        waiting = expected - {self._ours.me} - set(self._ours.gone)
        log = self._ours.log_reader(self._ours.keys.departures)
        # Whoever is to leave has been told to end at once.
        while waiting and stays(self._ours.clock() - began, waiting) and not self._ours.wanted:
            for _, key, value in (yield from log.read()):
                try:
                    node = self._ours.codec.decode(key, value).text("node", max_len=MAX_NAME)
                except RecordError as error:
                    self._ours.doubts.note("a good-bye", error)
                else:
                    waiting.discard(node)
            if waiting:
                if not has_said and self._ours.clock() - began >= _SAID_AFTER:
                    has_said = True
                    _log.warning(
                        "this node hosts the store of job %r and stays, for up to %g s, for nodes "
                        "that do not know yet how the job has ended: %s",
                        self._ours.identity.run_id,
                        self._ours.timing.close_timeout,
                        ", ".join(sorted(map(states.host_of, waiting))[:_MOST_NAMED]),
                    )
                yield from log.wait(min(_LINGER, self._ours.timing.keep_alive_interval))
