"""Where the records of a job are, and what a node says of itself when it joins a round.

A *log* is a list that many nodes write at once: a counter that gives out tickets from 1 on, and a
record under each ticket. Being on it takes two operations, however many others there are. A ticket
whose node died before it wrote its record stays a hole.

A counter is not signed, so whoever can write to the store can let it say anything. What it makes a
node read is therefore bounded.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from plaunch.durations import bounded
from plaunch.rendezvous import MAX_NAME

from plaunch_membership.operations import Add, MultiGet, Routine, Sleep, Wait
from plaunch_membership.placement import Newcomer
from plaunch_membership.records import RecordError

if TYPE_CHECKING:
    from plaunch_membership.records import Record

MAX_TICKETS = 1 << 22  # of one log, in the largest job
NODES_OF_A_PART = 64  # of a record of a world, whose names take 10 kB at most, each

_HOLE_WAIT = 0.05  # seconds to wait for a record whose ticket was taken, before others are read
_HASTY_LOOKS = 40  # at holes before it is believed that their nodes have died
_MOST_HOLES = 1024  # that are looked at in one go
_AT_ONCE = 128  # records that are asked for in one operation
_MOST_WORKERS = 1 << 16  # of one node
_FEW_TICKETS = 1 << 16  # of one log, that any job may have: of nodes, and of spares
_TICKETS_PER_NODE = 4  # a node may take more than one, when an answer of the store is lost


def job_key(run_id: str) -> str:
    """Where it says which incarnation of a run id is the present one."""
    return f"plaunch/{quote(run_id, safe='')}/job"


class Keys:
    """The names of all records of one incarnation of a job."""

    def __init__(self, run_id: str, incarnation: str) -> None:
        self.incarnation = incarnation
        self._prefix = f"plaunch/{quote(run_id, safe='')}/{quote(incarnation, safe='')}"

    @property
    def versions(self) -> str:
        """Counts the states, so that latecomers need not read all; a hint, which may be wrong."""
        return f"{self._prefix}/versions"

    def state(self, version: int) -> str:
        """One version of the state."""
        return f"{self._prefix}/state/{version}"

    def joined(self, round_: int) -> str:
        """The log of the nodes that want to be in a round."""
        return f"{self._prefix}/round/{round_}/joined"

    def slot(self, round_: int, term: int, ticket: int) -> str:
        """What became of a ticket of a round."""
        return f"{self._prefix}/round/{round_}/slot/{term}/{ticket}"

    def world(self, round_: int, term: int, part: int = 0) -> str:
        """All nodes of a round, in parts of `NODES_OF_A_PART`."""
        key = f"{self._prefix}/round/{round_}/world/{term}"
        return f"{key}/{part}" if part else key

    def settled(self, round_: int) -> str:
        """The log of the nodes that have said who failed on them."""
        return f"{self._prefix}/round/{round_}/settled"

    def done(self, round_: int) -> str:
        """The log of the nodes whose workers have all succeeded."""
        return f"{self._prefix}/round/{round_}/done"

    @property
    def tidied(self) -> str:
        """Up to which round everything is deleted."""
        return f"{self._prefix}/tidied"

    def beat(self, node: str) -> str:
        """A node's last heartbeat."""
        return f"{self._prefix}/beat/{node}"

    @property
    def departures(self) -> str:
        """The log of the nodes that know the verdict."""
        return f"{self._prefix}/byes"


def tickets(log: str) -> str:
    """The counter of a log."""
    return f"{log}/tickets"


def entry(log: str, ticket: int) -> str:
    """The record under a ticket of a log."""
    return f"{log}/{ticket}"


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
                f"to {self._most}, as nodes are counted; something else has written it"
            )
        return count

    def read(self, most: int = MAX_TICKETS) -> Routine[list[tuple[int, str, bytes]]]:
        """What was written since the last time: ticket, key and value.

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


@dataclass(frozen=True)
class NodeRecord(Newcomer):
    """What a node says of itself when it joins a round.

    Args:
        pid: the agent's process id.
        address: under which other nodes reach it.
        port: a port that it holds for the workers' store.
        stop_timeout: how long it may need to come back for another round, in seconds.
    """

    pid: int = 0
    address: str = ""
    port: int = 0
    stop_timeout: float = 0.0

    def to_record(self) -> dict[str, object]:
        """The fields of the record that holds it; the ticket is in its key."""
        return {
            "node": self.node,
            "host": self.host,
            "pid": self.pid,
            "address": self.address,
            "port": self.port,
            "index": self.index,
            "previous": self.previous,
            "previous_round": self.previous_round,
            "role": self.role,
            "nproc": self.local_world_size,
            "is_host": self.is_host,
            "stop_timeout": bounded(self.stop_timeout),
        }

    @classmethod
    def from_record(cls, ticket: int, record: Record) -> NodeRecord:
        """Read a node's record.

        Raises:
            RecordError: it is none.
        """
        return cls(
            ticket=ticket,
            node=record.text("node", max_len=MAX_NAME),
            host=record.text("host", max_len=MAX_NAME),
            index=record.integer("index", low=0, default=None),
            previous=record.integer("previous", low=0, default=None),
            previous_round=record.integer("previous_round", low=0, default=None),
            is_host=record.flag("is_host"),
            local_world_size=record.integer("nproc", low=1, high=_MOST_WORKERS),
            role=record.text("role", max_len=MAX_NAME),
            pid=record.integer("pid", low=0),
            address=record.text("address", max_len=MAX_NAME),
            port=record.integer("port", low=0, high=65535),
            stop_timeout=max(bounded(record.number("stop_timeout")), 0.0),
        )

    def describe(self) -> str:
        """The node in messages: its host, and its index if it was given one."""
        index = "" if self.index is None else f" (index {self.index})"
        return f"{self.host}{index}"
