"""Deletes what past rounds have left in the store: logs, slots, lists of nodes.

States stay, few and small as they are. Each is written once, where there was nothing before, and a
node that was away writes the one after the last that it knows: if that had been deleted, it would
begin another history.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousStateError

from plaunch_membership.keys import NODES_OF_A_PART, entry, tickets
from plaunch_membership.operations import Delete, MultiGet, Routine, Set
from plaunch_membership.records import RecordError

if TYPE_CHECKING:
    from plaunch_membership.membership import Membership
    from plaunch_membership.state import JobState

_AT_ONCE = 200  # keys that are deleted in one turn, so that none keeps the leader from its work
_TERMS = 64  # so many leaders before the present one may have left slots without a state


class Tidying:
    """The leader's work when it has nothing else to do, a few keys at a time.

    The round that runs and the one before are kept: not all nodes need have heard of the last
    changes. Up to which round everything is gone is noted in the store, for the next leader.

    Args:
        membership: this node's part in the job; only its present incarnation is tidied.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._keys = membership.keys
        self._codec = membership.codec
        self._next: int | None = None  # the first round of which something may be left
        self._pending: deque[str] = deque()

    def tidy(self, running: JobState) -> Routine[None]:
        """Delete some of what is left of rounds that are past, if there is anything."""
        past = running.round - 1
        if past < 1 or self._next == past:
            return
        if self._next is None:
            self._next = yield from self._read_note()
        if not self._pending and self._next < past:
            self._pending.extend((yield from self._left_of(self._next, running.term)))
        for _ in range(min(_AT_ONCE, len(self._pending))):
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
            self._membership.doubts.note("which rounds are deleted", error)
            return 0

    def _left_of(self, round_: int, term: int) -> Routine[list[str]]:
        """The keys of a round; the counters last, so that no ticket is given twice before."""
        logs = [self._keys.joined(round_), self._keys.settled(round_), self._keys.done(round_)]
        counts = []
        for log in logs:
            counts.append((yield from self._count(log)))
        terms = range(max(0, term - _TERMS), term + 1)
        # A leader writes its first part before all else, whether or not a state comes to name it.
        worlds = yield MultiGet([self._keys.world(round_, number) for number in terms])
        left = []
        for number, world in zip(terms, worlds, strict=True):
            if world is not None:
                slots = range(1, counts[0] + 1)
                left += [self._keys.slot(round_, number, ticket) for ticket in slots]
                # No more nodes than tickets; the first part last, as it shows that there is more.
                parts = range(max(0, counts[0] - 1) // NODES_OF_A_PART, -1, -1)
                left += [self._keys.world(round_, number, part) for part in parts]
        for log, count in zip(logs, counts, strict=True):
            left += [entry(log, ticket) for ticket in range(1, count + 1)]
        return [*left, *(tickets(log) for log in logs)]

    def _count(self, log: str) -> Routine[int]:
        """How many tickets of a log were given out; 0 if its counter cannot be one."""
        try:
            return (yield from self._membership.log_reader(log).read_count())
        except RendezvousStateError as error:
            # It stops nobody that something is left; and what it says may be any number.
            self._membership.doubts.note("what a past round has left", error)
            return 0
