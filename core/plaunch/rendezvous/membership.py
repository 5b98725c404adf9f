"""One node's part in a job: what its routines know in common, and what the agent may ask for.

A node has two routines over the store. The speaker writes: it joins, gives signs of life, watches
whom it must, and carries out what the agent wants. The follower reads: it blocks until there is a
next state of the job, again and again. A leader has a third one. Each runs on a thread of its own
with a connection of its own, so that nobody's wait delays a sign of life. They share this object
under one lock, which is never held while an operation is under way.

A node does a fixed number of operations to be in a round, however many nodes there are.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousClosedError
from plaunch.rendezvous import state as states
from plaunch.rendezvous.api import ChangeKind, MembershipChange
from plaunch.rendezvous.job import JobFailure, Verdict
from plaunch.rendezvous.node import Member
from plaunch.rendezvous.operations import Add, CompareSet, Routine, Wait
from plaunch.rendezvous.records import MAX_NAME, Doubts, RecordError
from plaunch.rendezvous.roll import NODES_OF_A_PART, Keys, NodeRecord, RollReader
from plaunch.rendezvous.state import Phase, State

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from plaunch.rendezvous.node import Identity, Place
    from plaunch.rendezvous.records import RecordCodec
    from plaunch.rendezvous.speaker import Speaker
    from plaunch.rendezvous.timing import Timing

_log = logging.getLogger("plaunch")

_PATIENCE = 5.0  # seconds to wait for a record that is there


class Membership:
    """One node's part in a job; what is not said otherwise is for the routines only.

    Args:
        identity: who this node is.
        timing: how long everything may take.
        codec: reads and writes records.
        clock: seconds that never go back.
        wall_clock: seconds since the epoch, for what people read.
    """

    def __init__(
        self,
        identity: Identity,
        timing: Timing,
        codec: RecordCodec,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.identity = identity
        self.timing = timing
        self.codec = codec
        self.clock = clock
        self.wall_clock = wall_clock
        self.doubts = Doubts()
        self.lock = threading.Condition(threading.RLock())
        # Set by whoever runs the routines:
        self.nudge: Callable[[], None] = _do_nothing  # wakes those that sleep
        self.told: Callable[[], None] = _do_nothing  # there are changes to take
        # The job, as far as this node knows:
        self.incarnation = 0  # counts how often this node has begun anew
        self.keys = Keys(identity.run_id, "-")
        self.job_record = b""
        self.state: State | None = None
        self.state_record = b""  # what the store holds for it
        self.past: set[str] = set()  # incarnations that this node was in, and never returns to
        self.verdict: Verdict | None = None
        self.attempt = 0  # the highest one of a job that this node was a member of
        # The others, as far as the leader must know:
        self.watched: set[str] = set()
        self.lost: dict[str, str] = {}  # nodes that were given up, and why
        self.gone: dict[str, str] = {}  # nodes that have said that they go, and why
        self.moving: set[str] = set()  # nodes that were seen to be alive
        # This node's part:
        self.place: Place | None = None  # in the last round of this incarnation that it was in
        self.former_place: Place | None = None  # in an incarnation before; a wish, and no claim
        self.error: BaseException | None = None
        self.wants_round = False
        self.is_active = False  # whether the agent runs, or may run, the round of `place`
        self.has_succeeded = False  # in the round of `place`
        self.joined: tuple[int, int] | None = None  # round and ticket
        self.asks: tuple[int, float] | None = None  # a round with room, and when it asks to join
        self.asked_in: int | None = None  # the round in whose course it has asked, or must not
        self.settled: int | None = None  # the last round of which it has said who failed
        self.settle_at: float | None = None  # when it will say so if the agent does not
        self.has_said_bye = False
        self.leaving = ""  # why this node goes, once it does
        self.is_closing = False  # nothing more will be wanted
        self.must_reopen = False  # the job is not the one that the store knows
        # Notices that this node has sent and not heard yet, by signal: the state that it knew then.
        self.notices: dict[int, int] = {}
        self.wanted: deque[Callable[[Speaker], Routine[None]]] = deque()
        self._changes: list[MembershipChange] = []
        self._writes = itertools.count()

    @property
    def me(self) -> str:
        """This node's name."""
        return self.identity.node

    # --- for the handler, on any thread -----------------------------------------------------------

    def want_round(self) -> None:
        """Take part in the next round; `place` is the answer."""
        with self.lock:
            self.wants_round = True
            self.is_active = False
            self._changes.clear()
        self.nudge()

    @property
    def is_parked(self) -> bool:
        """Whether the job runs without this node, which waits for a place."""
        state = self.state
        return self.wants_round and state is not None and state.phase is not Phase.FORMING

    def clear_changes(self) -> None:
        """Forget what the agent has not taken, because a new round makes it pointless."""
        with self.lock:
            self._changes.clear()

    def take_changes(self) -> list[MembershipChange]:
        """What has happened since the last call."""
        with self.lock:
            taken, self._changes = self._changes, []
        return taken

    def want(self, wish: Callable[[Speaker], Routine[None]], *, is_last: bool = False) -> None:
        """Have something done by the speaker; nothing is done after the last."""
        with self.lock:
            self.wanted.append(wish)
            self.is_closing = self.is_closing or is_last
        self.nudge()

    def report(self, failures: Sequence[JobFailure], *, is_final: bool) -> None:
        """Say that workers of the present round have failed on this node."""
        with self.lock:
            place = self.place
            if place is None or not self.is_active:
                return
        self._want_of(
            place, lambda speaker: speaker.report(place.round, failures, is_final=is_final)
        )

    def succeed(self) -> None:
        """Say that all workers of the present round have succeeded on this node."""
        with self.lock:
            place = self.place
            if place is None or not self.is_active:
                return
            self.has_succeeded = True
        self._want_of(place, lambda speaker: speaker.succeed(place.round, place.nodes))

    def _want_of(self, place: Place, wish: Callable[[Speaker], Routine[None]]) -> None:
        """Have something said of the round of `place`, unless that is not this node's any more.

        The next incarnation has a round of the same number, of which it would not be true.
        """

        def said(speaker: Speaker) -> Routine[None]:
            if self.place is place:
                yield from wish(speaker)

        self.want(said)

    def send_notice(self, signum: int) -> None:
        """Pass a signal on to all other nodes.

        What nodes send before they have heard of each other is one notice; none of them hears it.
        """
        with self.lock:
            since = self.notices[signum] = -1 if self.state is None else self.state.version

        def make(state: State) -> State | None:
            event = state.event
            is_told = event.kind == "notice" and event.signum == signum and state.version > since
            if is_told or signum not in self.notices:
                return None
            return states.notify(state, self.me, signum)

        def notice(speaker: Speaker) -> Routine[None]:
            del speaker
            yield from self.change(make)

        self.want(notice)

    def request_round(self, reason: str) -> None:
        """End the present round on all nodes, because somebody wants another one."""
        with self.lock:
            place = self.place
            if place is None or not self.is_active:
                return

        def asking(speaker: Speaker) -> Routine[None]:
            del speaker
            yield from self.change(
                lambda state: states.call(
                    state, "requested", self.me, reason, by=self.me, from_round=place.round
                )
            )

        self._want_of(place, asking)

    def close(self, reason: str) -> None:
        """Find the verdict that the job is over, because somebody wants it."""
        verdict = Verdict("closed", self.identity.host, reason, self.wall_clock())

        def closing(speaker: Speaker) -> Routine[None]:
            del speaker
            yield from self.change(lambda state: states.end(state, verdict, by=self.me))

        self.want(closing)

    def announce_leave(self, reason: str) -> None:
        """Say that this node goes on purpose, without going yet."""
        self.want(lambda speaker: speaker.leave(reason))

    def leave(self, reason: str) -> None:
        """Go on purpose; the job may go on without this node."""
        self.want(lambda speaker: speaker.leave(reason), is_last=True)

    def linger(self, stays: Callable[[float, Collection[str]], bool]) -> None:
        """Stay until all other nodes know the verdict, or `stays` has enough; see the speaker."""
        self.want(lambda speaker: speaker.linger(stays), is_last=True)

    def finish(self) -> None:
        """Go, once all that is wanted is done."""
        with self.lock:
            self.is_closing = True
        self.nudge()

    # --- for the routines -------------------------------------------------------------------------

    def begin_anew(
        self, keys: Keys, state: State, *, job_record: bytes, state_record: bytes
    ) -> None:
        """Be a node that has found a job, and has no part in it yet."""
        with self.lock:
            self.incarnation += 1
            self.former_place, self.place = self.place or self.former_place, None
            self.has_succeeded = False
            self.keys, self.job_record = keys, job_record
            self.state, self.state_record = state, state_record
            self.joined = self.asks = self.asked_in = self.settled = self.settle_at = None
            self.has_said_bye = self.must_reopen = False
            self.notices.clear()
            self.watched, self.lost, self.gone, self.moving = set(), {}, {}, set()
            self.lock.notify_all()

    def refuse(self, reason: str) -> None:
        """End this node's part before it has begun."""
        with self.lock:
            self.error = RendezvousClosedError(
                f"node {self.identity.host} is refused by job {self.identity.run_id!r}: {reason}"
            )
            self.wants_round = False
            self.lock.notify_all()

    def lose_job(self, reason: str) -> None:
        """Look for the job again, because the present one is not it any more."""
        with self.lock:
            self.must_reopen = True
            self.past.add(self.keys.incarnation)
            if self.is_active:
                self.is_active = False
                self.tell(MembershipChange(ChangeKind.LOST, self.identity.host, reason))

    def done_nodes(self, round_: int) -> Routine[set[str]]:
        """The nodes that have said that they are done in a round."""
        roll = self.roll(self.keys.done(round_))
        found = yield from roll.read()
        if roll.has_holes:
            # Its writer is between its two operations, or has died between them.
            yield from roll.wait(self.timing.keep_alive_interval)
            found += yield from roll.read()
        done = set()
        for _, key, value in found:
            try:
                done.add(self.codec.decode(key, value).text("node", max_len=MAX_NAME))
            except RecordError as error:
                self.doubts.note("who is done", error)
        return done

    def find_success(self, round_: int, incarnation: int | None = None) -> Routine[None]:
        """Find the verdict of a round that still runs, and in which all nodes are done."""
        verdict = Verdict(
            "succeeded", self.identity.host, "all workers have succeeded", self.wall_clock()
        )
        yield from self.change(
            lambda state: (
                states.end(state, verdict, by=self.me)
                if state.phase is Phase.RUNNING and state.round == round_
                else None
            ),
            incarnation,
        )

    def joined_nodes(self, round_: int) -> Routine[dict[str, NodeRecord]]:
        """The nodes on the roll of a round, as far as their records can be read."""
        found = {}
        for ticket, key, value in (yield from self.roll(self.keys.joined(round_)).read()):
            record = self.read_node(ticket, key, value)
            if record is not None:
                found[record.node] = record
        return found

    def roll(self, key: str) -> RollReader:
        """Read a roll of this job."""
        return RollReader(key, self.identity.max_nodes)

    def read_node(self, ticket: int, key: str, value: bytes) -> NodeRecord | None:
        """Read a node's record; None, and a word in the log, if it is none."""
        try:
            return NodeRecord.from_record(ticket, self.codec.decode(key, value))
        except RecordError as error:
            self.doubts.note("a node's record", error)
            return None

    def members(self, state: State) -> Routine[dict[str, Member]]:
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
        self, make: Callable[[State], State | None], incarnation: int | None = None
    ) -> Routine[State | None]:
        """Bring about the next state.

        Args:
            make: makes it from the present one, or says None if there is nothing to change; it is
                called again if somebody else was faster.
            incarnation: nothing is changed in any other. It may be left out on the speaker's
                thread, which is the one that begins anew.

        Returns:
            The new state, or None.
        """
        with self.lock:
            if incarnation not in (None, self.incarnation):
                return None
            state, keys = self.state, self.keys
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
            state = State.from_record(self.codec.decode(key, held), new.version)
        return None

    def _encode(self, key: str, state: State) -> bytes:
        try:
            return self.codec.encode(key, state.to_record())
        except RecordError as error:
            # All must learn how the job has ended, even if not why.
            _log.warning("it is written without its failures: %s", error)
            return self.codec.encode(key, states.in_brief(state).to_record())

    def is_member(self, state: State | None) -> bool:
        """Whether this node is in the last round that was formed."""
        return (
            state is not None
            and state.world is not None
            and self.place is not None
            and self.place.round == state.world.round
        )

    def tell(self, change: MembershipChange) -> None:
        """Tell the agent; the lock is held."""
        self._changes.append(change)
        self.lock.notify_all()
        self.told()


def _do_nothing() -> None:
    """Nobody is there yet."""
