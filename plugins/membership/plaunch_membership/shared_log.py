"""Lists that many nodes append to concurrently.

A *log* is a counter that issues tickets from 1, and a record for each ticket. Appending takes one
request, however many nodes do so. Most stores need two: if a node dies between them, a hole
remains. If an answer is lost, a record has two tickets, so readers must know whose it is. All
records are signed for the key of the log: a node does not know its ticket before.

A counter is not signed, so any client of the store can set it to any value. The number of records
that it makes a node read is therefore bounded.
"""

from __future__ import annotations

from collections import deque

from plaunch_membership.keys import entry, tickets
from plaunch_membership.operations import Add, MultiGet, Routine, Sleep, Wait
from plaunch_membership.records import RecordError

MAX_TICKETS = 1 << 22  # of one log, in the largest job

_HOLE_WAIT = 0.05  # seconds to wait for a record whose ticket was issued, before others are read
_FREQUENT_READS = 40  # frequent reads of holes before their writers count as dead
_MAX_HOLES = 1024  # read in one call
_BATCH = 128  # records read in one operation
_FEW_TICKETS = 1 << 16  # allowed in any log: of nodes and spares
_TICKETS_PER_NODE = 4  # a node takes more than one if an answer of the store is lost


class SharedLogReader:
    """Reads a log as it grows, every record once.

    Args:
        log: the key of the log.
        max_nodes: the maximum number of nodes of a round.
    """

    def __init__(self, log: str, max_nodes: int) -> None:
        self._most = max(_FEW_TICKETS, _TICKETS_PER_NODE * max_nodes)
        self.count = 0  # the last ticket that was read
        self.has_shrunk = False  # whether the counter has decreased
        self._log_key = log
        self._holes: deque[int] = deque()  # tickets without a record, the least recently read first
        self._frequent_reads = 0
        self._has_more = False
        self._untaken = 0  # the ticket of a record that was written without taking the ticket

    def read_count(self) -> Routine[int]:
        """Return the number of tickets that were issued.

        Raises:
            RecordError: the counter is out of range.
        """
        count: int = yield Add(tickets(self._log_key), 0)
        if not 0 <= count <= self._most:
            raise RecordError(
                f"the counter under {tickets(self._log_key)!r} is {count}, which is not from 0 "
                f"to {self._most}, the possible number of nodes; something else has written it"
            )
        return count

    def read(self, most: int = MAX_TICKETS) -> Routine[list[tuple[int, str, bytes]]]:
        """Return the records written since the last call: ticket, key of the log, and value.

        Args:
            most: the maximum number of new tickets to read; the others are left for the next call.

        Raises:
            RecordError: the counter is out of range.
        """
        count = yield from self.read_count()
        self.has_shrunk |= count < self.count
        last = min(count, self.count + most)
        self._has_more = last < count
        wanted = [self._holes.popleft() for _ in range(min(len(self._holes), _MAX_HOLES))]
        self._frequent_reads += bool(wanted)
        if last > self.count:
            wanted += range(self.count + 1, last + 1)
            self._frequent_reads = 0
        self.count = max(self.count, last)
        found = []
        for begin in range(0, len(wanted), _BATCH):
            part = wanted[begin : begin + _BATCH]
            keys = [entry(self._log_key, ticket) for ticket in part]
            values = yield MultiGet(keys)
            for ticket, value in zip(part, values, strict=True):
                if value is None:
                    self._holes.append(ticket)
                else:
                    found.append((ticket, self._log_key, value))
        return found

    @property
    def has_holes(self) -> bool:
        """Whether issued tickets have no record yet."""
        return bool(self._holes)

    def wait(self, seconds: float, most: int = 1) -> Routine[None]:
        """Return when there may be more to read, or after so many seconds.

        Args:
            seconds: the time, in seconds.
            most: how many further records the caller needs; it may be called for fewer.
        """
        if self._has_more:
            return
        if self._holes and self._frequent_reads < _FREQUENT_READS:
            # The writer is between two operations, or has died there.
            yield Wait(entry(self._log_key, self._holes[-1]), min(seconds, _HOLE_WAIT))
        else:
            ticket = self.count + most
            if ticket == self._untaken:
                yield Sleep(seconds)
            elif (yield Wait(entry(self._log_key, ticket), seconds)) is not None:
                # If its ticket is not issued before the next read, it must not be found again and
                # again.
                self._untaken = ticket
