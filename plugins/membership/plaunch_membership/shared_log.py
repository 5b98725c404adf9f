"""Lists that many nodes write at once.

A *log* is a counter that gives out tickets from 1 on, and a record under each ticket. To append to
it takes two operations, however many others do so. A ticket whose node died before it wrote its
record stays a hole.

A counter is not signed, so any writer of the store can set it to any value. What it makes a
node read is therefore bounded.
"""

from __future__ import annotations

from collections import deque

from plaunch_membership.keys import entry, tickets
from plaunch_membership.operations import Add, MultiGet, Routine, Sleep, Wait
from plaunch_membership.records import RecordError

MAX_TICKETS = 1 << 22  # of one log, in the largest job

_HOLE_WAIT = 0.05  # seconds to wait for a record whose ticket was taken, before others are read
_HASTY_LOOKS = 40  # at holes before it is believed that their nodes have died
_MOST_HOLES = 1024  # that are looked at in one go
_AT_ONCE = 128  # records that are asked for in one operation
_FEW_TICKETS = 1 << 16  # of one log, that any job may have: of nodes, and of spares
_TICKETS_PER_NODE = 4  # a node may take more than one, when an answer of the store is lost


class SharedLogReader:
    """Reads a log as it grows, every record once.

    Args:
        log: which.
        max_nodes: how many nodes a round has at most.
    """

    def __init__(self, log: str, max_nodes: int) -> None:
        self._most = max(_FEW_TICKETS, _TICKETS_PER_NODE * max_nodes)
        self.count = 0  # of the tickets that were given out, as far as they have been looked at
        self.is_forgotten = False  # whether the store knows of fewer than it did
        self._log_key = log
        self._holes: deque[int] = deque()  # those that were not looked at for longest come first
        self._hasty_looks = 0
        self._has_more = False
        self._untaken = 0  # the ticket of a record that somebody has written without taking it

    def read_count(self) -> Routine[int]:
        """How many tickets were given out.

        Raises:
            RecordError: its counter cannot be one.
        """
        count: int = yield Add(tickets(self._log_key), 0)
        if not 0 <= count <= self._most:
            raise RecordError(
                f"the counter under {tickets(self._log_key)!r} says {count}, which is not from 0 "
                f"to {self._most}, the possible number of nodes; something else has written it"
            )
        return count

    def read(self, most: int = MAX_TICKETS) -> Routine[list[tuple[int, str, bytes]]]:
        """The records that were written since the last time: ticket, key and value.

        Args:
            most: how many new tickets are looked at; the others remain for the next time.

        Raises:
            RecordError: its counter cannot be one.
        """
        count = yield from self.read_count()
        self.is_forgotten |= count < self.count
        last = min(count, self.count + most)
        self._has_more = last < count
        wanted = [self._holes.popleft() for _ in range(min(len(self._holes), _MOST_HOLES))]
        self._hasty_looks += bool(wanted)
        if last > self.count:
            wanted += range(self.count + 1, last + 1)
            self._hasty_looks = 0
        self.count = max(self.count, last)
        found = []
        for begin in range(0, len(wanted), _AT_ONCE):
            part = wanted[begin : begin + _AT_ONCE]
            keys = [entry(self._log_key, ticket) for ticket in part]
            values = yield MultiGet(keys)
            for ticket, key, value in zip(part, keys, values, strict=True):
                if value is None:
                    self._holes.append(ticket)
                else:
                    found.append((ticket, key, value))
        return found

    @property
    def has_holes(self) -> bool:
        """Whether tickets were given out whose records are not there."""
        return bool(self._holes)

    def wait(self, seconds: float) -> Routine[None]:
        """Return when there may be more to read, or after so many seconds."""
        if self._has_more:
            return
        if self._holes and self._hasty_looks < _HASTY_LOOKS:
            # Its writer is between its two operations, or has died there.
            yield Wait(entry(self._log_key, self._holes[-1]), min(seconds, _HOLE_WAIT))
        else:
            ticket = self.count + 1
            if ticket == self._untaken:
                yield Sleep(seconds)
            elif (yield Wait(entry(self._log_key, ticket), seconds)) is not None:
                # If nobody has taken its ticket by the next look, it would be found for ever.
                self._untaken = ticket
