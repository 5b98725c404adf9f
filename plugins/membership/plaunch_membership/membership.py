"""A node's knowledge of its job, and the operations that all of its routines share.

A node has two routines over the store. The writer joins, sends heartbeats, watches other nodes,
and carries out the agent's requests. The watcher reads: it blocks until there is a next state
of the job, again and again. A leader has a third one. Each has its own thread and connection,
so that no wait delays a heartbeat. They share this object under one
lock, which is never held while an operation is under way.

A node does a fixed number of operations to be in a round, however many nodes there are.
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
from plaunch.rendezvous import ChangeKind, MembershipChange

from plaunch_membership import transitions
from plaunch_membership.bounds import MAX_NAME
from plaunch_membership.keys import NODES_OF_A_PART, Keys
from plaunch_membership.node import Member, NodeRecord
from plaunch_membership.operations import Add, CompareSet, Routine, Sleep, Wait
from plaunch_membership.records import Doubts, RecordError
from plaunch_membership.shared import KnownJob, News, Part, Peers, RequestQueue
from plaunch_membership.shared_log import SharedLogReader
from plaunch_membership.state import JobPhase, JobState, RecordedVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch_membership.node import Identity
    from plaunch_membership.records import RecordCodec
    from plaunch_membership.shared import Request
    from plaunch_membership.timing import Timing

_log = logging.getLogger("plaunch")

_PATIENCE = 5.0  # seconds to wait for a record that is there


class Membership:
    """One node's membership in a job.

    Args:
        identity: who this node is.
        timing: how long everything may take.
        codec: reads and writes records.
        clock: seconds that never go back.
        wall_clock: seconds since the epoch, for what people read.
        follows: the incarnation of a job of this run id that is over, and that this one replaces.
    """

    def __init__(
        self,
        identity: Identity,
        timing: Timing,
        codec: RecordCodec,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        follows: str = "",
    ) -> None:
        self.follows = follows
        self.identity = identity
        self.timing = timing
        self.codec = codec
        self.clock = clock
        self.wall_clock = wall_clock
        self.doubts = Doubts()
        self.lock = threading.Condition(threading.RLock())
        # Wakes the routines; set by whoever runs them.
        self.nudge: Callable[[], None] = lambda: None
        self.job = KnownJob(0, Keys(identity.run_id, "-"))
        self.peers = Peers()
        self.part = Part()
        self.requests = RequestQueue()
        self.news = News(self.lock)
        # Who hears broadcasts, by their name; called on the watcher's thread.
        self.listeners: dict[str, Callable[[str], None]] = {}
        # Of a job that this node was a member of: the highest attempt, and the excluded hosts.
        self.attempt = 0
        self.excluded: Mapping[str, str] = {}
        self.excludes_itself = False  # this node has said that its host is to be one of them
        self.past: set[str] = set()  # incarnations that this node was in, and never returns to
        self.must_reopen = False  # the job is not the one that the store knows
        self._writes = itertools.count()

    @property
    def me(self) -> str:
        """This node's name."""
        return self.identity.node

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
        """Whether the job runs without this node, which waits for a place."""
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
        """Whether the job goes on without this node's host, or is about to."""
        state = self.state
        return self.excludes_itself or (state is not None and self.identity.host in state.excluded)

    def exclusion(self) -> NodeExcludedError | None:
        """Why the job goes on without this node's host; None if it does not."""
        state, host = self.state, self.identity.host
        if state is None or host not in state.excluded:
            return None
        return NodeExcludedError(
            f"job {self.identity.run_id!r} goes on without node {host}: {state.excluded[host]}"
        )

    def remember(self, state: JobState) -> None:
        """Keep what the job must know if its store loses it; this node is a member of it."""
        self.attempt = max(self.attempt, state.attempt)
        self.excluded = state.excluded or self.excluded

    def request(self, request: Request, *, is_last: bool = False) -> None:
        """Have something done by the writer; nothing is done after the last."""
        with self.lock:
            self.requests.add(request, is_last=is_last)
        self.nudge()

    # --- turns of fortune -------------------------------------------------------------------------

    def begin_anew(
        self, keys: Keys, state: JobState, *, job_record: bytes, state_record: bytes
    ) -> None:
        """Be a node that has found a job, and has no part in it yet."""
        with self.lock:
            # It may have got a place between its decision to look for the job and now.
            self._lose_place("the job begins anew")
            self.job = KnownJob(self.job.incarnation + 1, keys, job_record, state, state_record)
            self.part.begin_anew()
            self.peers = Peers()
            self.must_reopen = False
            self.lock.notify_all()

    def refuse(self, reason: str) -> None:
        """End this node's part before it has begun."""
        with self.lock:
            self.news.error = RendezvousClosedError(
                f"node {self.identity.host} is refused by job {self.identity.run_id!r}: {reason}"
            )
            self.part.wants_round = False
            self.lock.notify_all()

    def lose_job(self, reason: str) -> None:
        """Look for the job again, because the present one is not it any more."""
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
        """The nodes that have said that they are done in a round."""
        log = self.log_reader(self.keys.done(round_))
        found = yield from log.read()
        if log.has_holes:
            # Its writer is between its two operations, or has died between them.
            yield from log.wait(self.timing.keep_alive_interval)
            found += yield from log.read()
        done = set()
        for _, key, value in found:
            try:
                done.add(self.codec.decode(key, value).text("node", max_len=MAX_NAME))
            except RecordError as error:
                self.doubts.note("who is done", error)
        return done

    def find_success(self, round_: int, incarnation: int | None = None) -> Routine[None]:
        """Find the verdict of a round that still runs, and in which all nodes are done."""
        verdict = RecordedVerdict(
            "succeeded", self.identity.host, "all workers have succeeded", self.wall_clock()
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
        """The nodes on the log of a round, as far as their records can be read."""
        found = {}
        for ticket, key, value in (yield from self.log_reader(self.keys.joined(round_)).read()):
            record = self.read_node(ticket, key, value)
            if record is not None:
                found[record.node] = record
        return found

    def log_reader(self, key: str) -> SharedLogReader:
        """Read a log of this job."""
        return SharedLogReader(key, self.identity.max_nodes)

    def read_node(self, ticket: int, key: str, value: bytes) -> NodeRecord | None:
        """Read a node's record; None, and a word in the log, if it is none."""
        try:
            return NodeRecord.from_record(ticket, self.codec.decode(key, value))
        except RecordError as error:
            self.doubts.note("a node's record", error)
            return None

    def members(self, state: JobState) -> Routine[dict[str, Member]]:
        """The nodes of the last round that was formed, in order of their ranks."""
        world = state.world
        if world is None:
            return {}
        members: dict[str, Member] = {}
        for part in range(-(-world.nodes // NODES_OF_A_PART)):
            key = self.keys.world(world.round, world.term, part)
            value = yield Wait(key, _PATIENCE)
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
        """Bring about the next state.

        Args:
            make: makes it from the present one, or says None if there is nothing to change; it is
                called again if another node was faster.
            incarnation: nothing is changed in any other. It may be omitted on the writer's
                thread, which is the one that starts again.

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
                yield Add(keys.versions)
                return new
            state = JobState.from_record(self.codec.decode(key, held), new.version)
            if longest := self.timing.longest_backoff:
                yield Sleep(random.uniform(0, longest))  # noqa: S311 - no secret
        return None

    def _encode(self, key: str, state: JobState) -> bytes:
        try:
            return self.codec.encode(key, state.to_record())
        except RecordError as error:
            # All must learn how the job has ended, even if not why.
            _log.warning("it is written without its failures: %s", error)
            return self.codec.encode(key, transitions.in_brief(state).to_record())
