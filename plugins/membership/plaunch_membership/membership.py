"""What a node knows of its job, and the operations that all of its routines share.

A node has two routines that use the store. The writer joins, sends heartbeats, watches other nodes,
and processes the agent's requests. The watcher waits for the next state of the job, again and
again. The leader has a third routine. Each has its own thread and connection, so that no wait
delays a heartbeat. They share this object under one lock, which is never held during an operation.

The number of operations of a node per round is constant, whatever the number of nodes.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from plaunch.errors import NodeExcludedError, RendezvousClosedError
from plaunch.rendezvous import ChangeKind, JobOutcome, MembershipChange

from plaunch_membership import transitions
from plaunch_membership.keys import NODES_OF_A_PART, Keys, newest_key
from plaunch_membership.memory import JobMemory
from plaunch_membership.node import HAS_STOPPED, Member, NodeRecord
from plaunch_membership.operations import CompareSet, MultiGet, Routine, Set, Sleep, Wait
from plaunch_membership.records import MAX_NAME, RecordError, RejectionLog
from plaunch_membership.shared import AgentNews, KnownJob, Participation, PeerStatus, WriterRequests
from plaunch_membership.shared_log import SharedLogReader
from plaunch_membership.state import JobEventKind, JobPhase, JobState, RecordedVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from plaunch.rendezvous import NodeSettings

    from plaunch_membership.node import NodeIdentity
    from plaunch_membership.options import Timing
    from plaunch_membership.records import RecordCodec
    from plaunch_membership.shared import Request

_log = logging.getLogger("plaunch")

_RECORD_TIMEOUT = 5.0  # seconds to wait for a record that should exist


class Membership:
    """One node's membership in a job.

    Args:
        identity: the identity of this node.
        timing: the intervals and timeouts.
        codec: encodes and decodes records.
        clock: a monotonic clock, in seconds.
        wall_clock: seconds since the epoch, for records and messages.
        follows: the incarnation of an earlier job of this run id, which is over and which this one
            replaces.
        wake_agent: wakes the agent, which then takes the news.
        absence_is_loss: whether the store deletes the heartbeats of processes that are gone, and
            of no others.
        hosts_store: whether this process hosts the store.
        has_lost_data: whether the store has lost data that it once had, as far as it knows itself.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        timing: Timing,
        codec: RecordCodec,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        follows: str = "",
        wake_agent: Callable[[], None] = lambda: None,
        absence_is_loss: bool = False,
        hosts_store: Callable[[], bool] = lambda: False,
        has_lost_data: Callable[[], bool] = lambda: False,
    ) -> None:
        self.follows = follows
        self._identity = identity
        self.timing = timing
        self.codec = codec
        self.clock = clock
        self.wall_clock = wall_clock
        self.absence_is_loss = absence_is_loss
        self._hosts_store = hosts_store
        self.has_lost_data = has_lost_data
        self.rejections = RejectionLog()
        self.lock = threading.Condition(threading.RLock())
        self._wake_routines: Callable[[], None] = lambda: None
        self.job = KnownJob(0, Keys(identity.run_id, "-"))
        self.peers = PeerStatus()
        self.part = Participation()
        self.requests = WriterRequests()
        self.news = AgentNews(self.lock, wake_agent)
        # The listeners for broadcasts by name; called on the watcher's thread.
        self.listeners: dict[str, Callable[[str], None]] = {}
        self.memory = JobMemory()  # of this job, in all of its incarnations
        self.excludes_itself = False  # this node has asked to exclude its host
        self.past: set[str] = set()  # incarnations that this node has left and never re-enters
        self.must_reopen = False  # the store holds another job
        self._writes = itertools.count()

    def on_nudge(self, wake_routines: Callable[[], None]) -> None:
        """Set the function that wakes the routines; called once, by the object that runs them."""
        self._wake_routines = wake_routines

    def nudge(self) -> None:
        """Wake the routines, because something has changed that they wait for."""
        self._wake_routines()

    @property
    def identity(self) -> NodeIdentity:
        """The identity of this node."""
        return self._identity

    def use_settings(self, settings: NodeSettings) -> None:
        """Use the agent's settings of this node, before it joins."""
        with self.lock:
            address = settings.local_addr or self._identity.address
            self._identity = replace(self._identity, settings=settings, address=address)

    @property
    def is_host(self) -> bool:
        """Whether this process hosts the store; final once it has connected."""
        return self._hosts_store()

    @property
    def me(self) -> str:
        """This node's name."""
        return self._identity.node

    @property
    def state(self) -> JobState | None:
        """The last state of the job that this node has read."""
        return self.job.state

    @property
    def keys(self) -> Keys:
        """The keys of the job's records."""
        return self.job.keys

    @property
    def is_parked(self) -> bool:
        """Whether this node waits for a place while the job runs without it."""
        state = self.state
        return self.part.wants_round and state is not None and state.phase is not JobPhase.FORMING

    def is_member(self, state: JobState | None) -> bool:
        """Whether this node is in the last round that was formed."""
        return (
            state is not None
            and state.world is not None
            and self.part.place is not None
            and self.part.place.round == state.world.round
        )

    @property
    def is_excluded(self) -> bool:
        """Whether this node's host is excluded, or about to be."""
        state = self.state
        return self.excludes_itself or (state is not None and self.identity.host in state.excluded)

    def exclusion(self) -> NodeExcludedError | None:
        """Return the error for an excluded host; None if this node's host is not excluded."""
        state, host = self.state, self.identity.host
        if state is None or host not in state.excluded:
            return None
        return NodeExcludedError(
            f"job {self.identity.run_id!r} has excluded node {host}: {state.excluded[host]}"
        )

    def request(self, request: Request, *, is_last: bool = False) -> None:
        """Queue a request for the writer; no request after the last is processed."""
        with self.lock:
            self.requests.add(request, is_last=is_last)
        self.nudge()

    # --- changes of this node's part --------------------------------------------------------------

    def enter_job(
        self, keys: Keys, state: JobState, *, job_record: bytes, state_record: bytes
    ) -> None:
        """Enter a job that was just found, without a place in it."""
        with self.lock:
            # The node may have got a place since it decided to look for the job.
            self._lose_place("the job starts again")
            self.job = KnownJob(self.job.incarnation + 1, keys, job_record, state, state_record)
            self.part.reset()
            self.memory.began = self.memory.began or self.wall_clock()
            self.peers = PeerStatus()
            self.must_reopen = False
            self.lock.notify_all()

    def enter_state(self, state: JobState, record: bytes) -> None:
        """Replace the last state of the job that this node has read, and what follows from it.

        Args:
            state: the next state.
            record: its stored record.
        """
        event = state.event
        with self.lock:
            self.job = replace(self.job, state=state, state_record=record)
            if state.verdict is not None:
                self.news.verdict = state.verdict
            if event.kind is JobEventKind.FORMED:
                self.part.notices.clear()  # they were for the workers of the last round
                self.peers.stopping = {}
            elif event.kind is JobEventKind.REFUSED and event.node == self.me:
                self.refuse(event.reason)
            elif event.kind is JobEventKind.ARRIVED:
                self.peers.note_arrival(event.node)
            elif event.kind is JobEventKind.LEFT:
                self.peers.note_departure(event.node, event.reason, self.clock())

    def refuse(self, reason: str) -> None:
        """Refuse this node before it takes part."""
        with self.lock:
            self.news.error = RendezvousClosedError(
                f"node {self.identity.host} is refused by job {self.identity.run_id!r}: {reason}"
            )
            self.part.wants_round = False
            self.lock.notify_all()

    def lose_job(self, reason: str) -> None:
        """Look for the job again, because the current incarnation is over."""
        with self.lock:
            self.must_reopen = True
            self.past.add(self.keys.incarnation)
            self._lose_place(reason)

    def _lose_place(self, reason: str) -> None:
        if self.part.is_active:
            self.part.is_active = False
            self.news.add(MembershipChange(ChangeKind.LOST, self.identity.host, reason))

    # --- what the store holds ---------------------------------------------------------------------

    def done_nodes(self, round_: int) -> Routine[set[str]]:
        """Return the nodes that have reported success in a round."""
        log = self.log_reader(self.keys.done(round_))
        found = yield from log.read()
        if log.has_holes:
            # The writer is between its two operations, or has died there.
            yield from log.wait(self.timing.keep_alive_interval)
            found += yield from log.read()
        done = set()
        for _, key, value in found:
            try:
                done.add(self.codec.decode(key, value).text("node", max_len=MAX_NAME))
            except RecordError as error:
                self.rejections.note("a report of success", error)
        return done

    def end_succeeded(self, round_: int, incarnation: int | None = None) -> Routine[None]:
        """End the job as succeeded, if the round still runs and all nodes have reported success."""
        verdict = RecordedVerdict(
            JobOutcome.SUCCEEDED,
            self.identity.host,
            "all workers have succeeded",
            self.wall_clock(),
        )
        yield from self.change(
            lambda state: (
                transitions.end(state, verdict, by=self.me)
                if state.phase is JobPhase.RUNNING and state.round == round_
                else None
            ),
            incarnation,
        )

    def joined_nodes(self, round_: int) -> Routine[dict[str, NodeRecord]]:
        """Return the nodes that have joined a round, without invalid records."""
        log = self.log_reader(self.keys.joined(round_))
        records = yield from log.read()
        if log.has_holes:  # the nodes that came last are still writing theirs
            yield from log.wait(self.timing.keep_alive_interval)
            records += yield from log.read()
        return self.read_nodes(records)

    def log_reader(self, key: str) -> SharedLogReader:
        """Return a reader for a log of this job."""
        return SharedLogReader(key, self.identity.max_nodes)

    def read_nodes(self, records: Iterable[tuple[int, str, bytes]]) -> dict[str, NodeRecord]:
        """Read records of a join log, and return the last one of each node, by its name.

        The last record of a node that leaves is noted, and an invalid one is logged.
        """
        found = {}
        for ticket, key, value in sorted(records):
            node = self._read_node(ticket, key, value)
            if node is not None:
                found[node.node] = node
        return found

    def _read_node(self, ticket: int, key: str, value: bytes) -> NodeRecord | None:
        try:
            record = self.codec.decode(key, value)
            if record.flag(HAS_STOPPED, default=False):
                self.peers.stopped.add(record.text("node", max_len=MAX_NAME))
                return None
            return NodeRecord.from_record(ticket, record)
        except RecordError as error:
            self.rejections.note("a node's record", error)
            return None

    def find_alive(self, nodes: Collection[str]) -> Routine[None]:
        """Note those of `nodes` that are alive, if one heartbeat shows that (`absence_is_loss`)."""
        if self.absence_is_loss:
            beats = yield MultiGet([self.keys.beat(node) for node in nodes])
            found = zip(nodes, beats, strict=True)
            self.peers.moving.update(node for node, beat in found if beat is not None)

    def members(self, state: JobState) -> Routine[dict[str, Member]]:
        """Return the nodes of the last round, in order of their ranks."""
        world = state.world
        if world is None:
            return {}
        members: dict[str, Member] = {}
        for part in range(-(-world.nodes // NODES_OF_A_PART)):
            key = self.keys.world(world.round, world.term, part)
            value = yield Wait(key, _RECORD_TIMEOUT)
            if value is None:
                return {}
            for found in self.codec.decode(key, value).records("nodes"):
                name = found.text("node", max_len=MAX_NAME)
                host = found.text("host", max_len=MAX_NAME)
                members[name] = Member(host, found.number("stop_timeout"))
        return members

    def change(
        self, make: Callable[[JobState], JobState | None], incarnation: int | None = None
    ) -> Routine[JobState | None]:
        """Write the next state.

        Args:
            make: makes it from the current state, or returns None if nothing is to be changed;
                called again if another node was faster.
            incarnation: if given, nothing is changed in any other incarnation. May be omitted on
                the writer's thread, which is the one that enters another incarnation.

        Returns:
            The new state, or None.
        """
        job = self.job
        if incarnation not in (None, job.incarnation):
            return None
        state, keys = job.state, job.keys
        while state is not None:
            new = make(state)
            if new is None:
                return None
            new = replace(new, event=replace(new.event, by=f"{self.me}#{next(self._writes)}"))
            key = keys.state(new.version)
            mine = self._encode(key, new)
            held = yield CompareSet(key, None, mine)
            if held == mine:
                hint = f"{keys.incarnation} {new.version} ".encode() + mine
                yield Set(newest_key(self.identity.run_id), hint)
                return new
            state = JobState.from_record(self.codec.decode(key, held), new.version)
            if longest := self.timing.longest_backoff:
                yield Sleep(random.uniform(0, longest))  # noqa: S311 - not a secret
        return None

    def _encode(self, key: str, state: JobState) -> bytes:
        try:
            return self.codec.encode(key, state.to_record())
        except RecordError as error:
            # All nodes must know how the job ended, even without the details.
            _log.warning("the verdict is too large; it is written without its failures: %s", error)
            return self.codec.encode(key, transitions.in_brief(state).to_record())
