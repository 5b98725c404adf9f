"""Deletes the records of past rounds from the store: logs, slots, and lists of nodes.

States are kept; they are few and small. Each is written once, where the key had no value, and a
node that was away writes the successor of the last state that it knows. If that successor had been
deleted, it would start a second history.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousStateError

from plaunch_membership.keys import NODES_OF_A_PART, entry, tickets
from plaunch_membership.operations import Delete, MultiGet, Routine, Set
from plaunch_membership.records import MAX_NAME, RecordError

if TYPE_CHECKING:
    from plaunch_membership.membership import Membership
    from plaunch_membership.state import JobState

_BATCH = 200  # keys deleted in one call, so that the leader is not delayed
_PARTS = 16  # of a list of nodes, read in one operation
_TERMS = 64  # the number of previous leaders whose slots may have no state


class RoundCleanup:
    """Deletes a few keys at a time while the leader is idle.

    The current round and the one before are kept, because some nodes may not have read the last
    changes. The store records up to which round everything is deleted, for the next leader.

    Args:
        membership: this node's membership; only its current incarnation is cleaned up.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._keys = membership.keys
        self._codec = membership.codec
        self._next: int | None = None  # the first round that may have records
        self._pending: deque[str] = deque()

    def run(self, running: JobState) -> Routine[None]:
        """Delete some records of past rounds, if any are left."""
        past = running.round - 1
        if past < 1 or self._next == past:
            return
        if self._next is None:
            self._next = yield from self._read_note()
        if not self._pending and self._next < past:
            self._pending.extend((yield from self._keys_of(self._next, running.term)))
        for _ in range(min(_BATCH, len(self._pending))):
            yield Delete(self._pending.popleft())
        if not self._pending and self._next < past:
            self._next += 1
            note = self._codec.encode(self._keys.tidied, {"round": self._next})
            yield Set(self._keys.tidied, note)

    def _read_note(self) -> Routine[int]:
        key = self._keys.tidied
        value = (yield MultiGet([key]))[0]
        if value is None:
            return 0
        try:
            return self._codec.decode(key, value).integer("round", low=0)
        except RecordError as error:
            self._membership.rejections.note("which rounds are deleted", error)
            return 0

    def _keys_of(self, round_: int, term: int) -> Routine[list[str]]:
        """Return the keys of a round; counters come last, so that no ticket is issued twice."""
        logs = [self._keys.joined(round_), self._keys.settled(round_), self._keys.done(round_)]
        counts = []
        for log in logs:
            counts.append((yield from self._count(log)))
        terms = range(max(0, term - _TERMS), term + 1)
        # A leader writes its first part first, even if no state ever refers to it.
        worlds = yield MultiGet([self._keys.world(round_, number) for number in terms])
        left = []
        for number, world in zip(terms, worlds, strict=True):
            if world is not None:
                left += yield from self._keys_of_world(round_, number, counts[0])
        for log, count in zip(logs, counts, strict=True):
            left += [entry(log, ticket) for ticket in range(1, count + 1)]
        return [self._keys.arrivals(round_), *left, *(tickets(log) for log in logs)]

    def _keys_of_world(self, round_: int, term: int, most: int) -> Routine[list[str]]:
        """Return the keys of a list of up to `most` nodes, and of their slots."""
        keys = [
            self._keys.world(round_, term, part) for part in range(-(-most // NODES_OF_A_PART) or 1)
        ]
        nodes = []
        for begin in range(0, len(keys), _PARTS):
            some = keys[begin : begin + _PARTS]
            for key, value in zip(some, (yield MultiGet(some)), strict=True):
                nodes += [] if value is None else self._nodes_in(key, value)
        # The first part comes last, as it shows that others exist.
        return [*(self._keys.slot(round_, term, node) for node in nodes), *reversed(keys)]

    def _nodes_in(self, key: str, value: bytes) -> list[str]:
        try:
            found = self._codec.decode(key, value).records("nodes")
            return [node.text("node", max_len=MAX_NAME) for node in found]
        except RecordError as error:
            # Leftover records do no harm.
            self._membership.rejections.note("a past round's list of nodes", error)
            return []

    def _count(self, log: str) -> Routine[int]:
        """Return the number of issued tickets of a log; 0 if the counter is out of range."""
        try:
            return (yield from self._membership.log_reader(log).read_count())
        except RendezvousStateError as error:
            # Leftover records do no harm, and the counter may be any number.
            self._membership.rejections.note("a past round's log", error)
            return 0
