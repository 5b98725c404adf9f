"""Where the records of a job are, and what a node says of itself when it joins a round.

A *roll* is a list that many nodes write at once: a counter that gives out tickets from 1 on, and a
record under each ticket. Being on it takes two operations, however many others there are. A ticket
whose node died before it wrote its record stays a hole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from plaunch.rendezvous.operations import Add, MultiGet, Routine, Wait
from plaunch.rendezvous.placement import Newcomer

if TYPE_CHECKING:
    from plaunch.rendezvous.records import Record

_HOLE_WAIT = 0.05  # seconds to wait for a record whose ticket was taken, before others are read
_MAX_NAME = 300  # characters of a host's or a role's name


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
        """The roll of the nodes that want to be in a round."""
        return f"{self._prefix}/round/{round_}/joined"

    def slot(self, round_: int, term: int, ticket: int) -> str:
        """What became of a ticket of a round."""
        return f"{self._prefix}/round/{round_}/slot/{term}/{ticket}"

    def world(self, round_: int, term: int) -> str:
        """All nodes of a round."""
        return f"{self._prefix}/round/{round_}/world/{term}"

    def settled(self, round_: int) -> str:
        """The roll of the nodes that have said who failed on them."""
        return f"{self._prefix}/round/{round_}/settled"

    def done(self, round_: int) -> str:
        """The roll of the nodes whose workers have all succeeded."""
        return f"{self._prefix}/round/{round_}/done"

    @property
    def tidied(self) -> str:
        """Up to which round everything is deleted."""
        return f"{self._prefix}/tidied"

    def beat(self, node: str) -> str:
        """A node's last sign of life."""
        return f"{self._prefix}/beat/{node}"

    @property
    def byes(self) -> str:
        """The roll of the nodes that know the verdict."""
        return f"{self._prefix}/byes"


def tickets(roll: str) -> str:
    """The counter of a roll."""
    return f"{roll}/tickets"


def entry(roll: str, ticket: int) -> str:
    """The record under a ticket of a roll."""
    return f"{roll}/{ticket}"


class RollReader:
    """Reads a roll as it grows, every record once."""

    def __init__(self, roll: str) -> None:
        self.count = 0  # of the tickets that were given out
        self.is_forgotten = False  # whether the store knows less of it than it did
        self._roll = roll
        self._holes: list[int] = []

    def read(self) -> Routine[list[tuple[int, str, bytes]]]:
        """What was written since the last time: ticket, key and value."""
        count = yield Add(tickets(self._roll), 0)
        wanted = [*self._holes, *range(self.count + 1, count + 1)]
        keys = [entry(self._roll, ticket) for ticket in wanted]
        values = yield MultiGet(keys)
        self.is_forgotten |= count < self.count
        self.count = max(count, self.count)
        found = list(zip(wanted, keys, values, strict=True))
        self._holes = [ticket for ticket, _, value in found if value is None]
        return [(ticket, key, value) for ticket, key, value in found if value is not None]

    def wait(self, seconds: float) -> Routine[None]:
        """Return when there may be more to read, or after so many seconds."""
        if self._holes:
            # Its writer is between its two operations, or has died there.
            yield Wait(entry(self._roll, self._holes[-1]), min(seconds, _HOLE_WAIT))
        else:
            yield Wait(entry(self._roll, self.count + 1), seconds)


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
            "stop_timeout": self.stop_timeout,
        }

    @classmethod
    def from_record(cls, ticket: int, record: Record) -> NodeRecord:
        """Read a node's record.

        Raises:
            RecordError: it is none.
        """
        return cls(
            ticket=ticket,
            node=record.text("node", max_len=_MAX_NAME),
            host=record.text("host", max_len=_MAX_NAME),
            index=record.integer("index", low=0, default=None),
            previous=record.integer("previous", low=0, default=None),
            previous_round=record.integer("previous_round", low=0, default=None),
            is_host=record.flag("is_host"),
            local_world_size=record.integer("nproc", low=1),
            role=record.text("role", max_len=_MAX_NAME),
            pid=record.integer("pid", low=0),
            address=record.text("address", max_len=_MAX_NAME),
            port=record.integer("port", low=0, high=65535),
            stop_timeout=record.number("stop_timeout"),
        )

    def describe(self) -> str:
        """The node in messages: its host, and its index if it was given one."""
        index = "" if self.index is None else f" (index {self.index})"
        return f"{self.host}{index}"
