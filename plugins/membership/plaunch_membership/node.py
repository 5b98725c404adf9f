"""A node's identity, its own record, and its place in a round."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plaunch.durations import bounded
from plaunch.rendezvous import JobRound, NodeSettings, RendezvousStoreInfo

from plaunch_membership.placement import Candidate
from plaunch_membership.records import MAX_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.rendezvous import JobSettings, RendezvousParameters, Store, WorldRanks

    from plaunch_membership.records import StoreRecord

# The field of the record on the join log by which a node that leaves says that its workers have
# ended. Its only other field is `node`.
HAS_STOPPED = "has_stopped"

_MAX_WORKERS = 1 << 16  # of one node


@dataclass(frozen=True)
class NodeIdentity:
    """The identity of this node.

    Args:
        node: its name, unique in the job, in printable ASCII without slashes.
        host: its hostname.
        pid: the process id of its agent.
        address: the address at which other nodes reach it.
        run_id: the id of the job.
        min_nodes: the minimum number of nodes of a round.
        max_nodes: the maximum number of nodes of a round.
        job: more settings of the launch.
        settings: what this node runs.
    """

    node: str
    host: str
    pid: int
    address: str
    run_id: str
    min_nodes: int
    max_nodes: int
    job: JobSettings
    settings: NodeSettings = field(default_factory=NodeSettings)

    @classmethod
    def of_this_process(cls, params: RendezvousParameters, address: str) -> NodeIdentity:
        """Return an identity for an agent in this process; every agent has its own name."""
        host, pid = socket.gethostname(), os.getpid()
        return cls(
            node=f"{_plain(host)}~{pid}~{os.urandom(4).hex()}",
            host=host,
            pid=pid,
            address=address,
            run_id=params.run_id,
            min_nodes=params.min_nodes,
            max_nodes=params.max_nodes,
            job=params.job,
        )


def _plain(host: str) -> str:
    """Return a hostname that can be part of a key."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in ".-_") else "-" for c in host)
    return plain[:200] or "host"


@dataclass(frozen=True)
class RoundPlace:
    """This node's place in one round of one incarnation."""

    round: int
    attempt: int
    rank: int
    nodes: int
    ranks: WorldRanks
    master_addr: str
    master_port: int
    reason: str
    decision: str

    def to_round(self, open_store: Callable[[], Store] | None) -> JobRound:
        """Convert it for the agent; `open_store` opens torch's store for programs."""
        return JobRound(
            None,
            self.rank,
            self.nodes,
            RendezvousStoreInfo(self.master_addr, self.master_port),
            attempt=self.attempt,
            ranks=self.ranks,
            reason=self.reason,
            decision=self.decision,
            round=self.round,
            open_store=open_store,
        )


@dataclass(frozen=True)
class Member:
    """A node of a formed round: its host, and the seconds that it may need to rejoin."""

    host: str
    stop_timeout: float


@dataclass(frozen=True)
class NodeRecord(Candidate):
    """The record that a node writes when it joins a round.

    Args:
        pid: the process id of its agent.
        address: the address at which other nodes reach it.
        port: a port that it has reserved for the workers' store.
        stop_timeout: seconds that it may need to rejoin for another round.
    """

    pid: int = 0
    address: str = ""
    port: int = 0
    stop_timeout: float = 0.0

    def to_record(self) -> dict[str, object]:
        """Return the fields of its record; the ticket is in its key."""
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
    def from_record(cls, ticket: int, record: StoreRecord) -> NodeRecord:
        """Read a node's record.

        Raises:
            RecordError: a field is invalid.
        """
        return cls(
            ticket=ticket,
            node=record.text("node", max_len=MAX_NAME),
            host=record.text("host", max_len=MAX_NAME),
            index=record.integer("index", low=0, default=None),
            previous=record.integer("previous", low=0, default=None),
            previous_round=record.integer("previous_round", low=0, default=None),
            is_host=record.flag("is_host"),
            local_world_size=record.integer("nproc", low=1, high=_MAX_WORKERS),
            role=record.text("role", max_len=MAX_NAME),
            pid=record.integer("pid", low=0),
            address=record.text("address", max_len=MAX_NAME),
            port=record.integer("port", low=0, high=65535),
            stop_timeout=max(bounded(record.number("stop_timeout")), 0.0),
        )

    def describe(self) -> str:
        """Describe the node in messages: its host, and its index if it was given one."""
        index = "" if self.index is None else f" (index {self.index})"
        return f"{self.host}{index}"
