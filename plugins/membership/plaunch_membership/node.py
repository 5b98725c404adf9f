"""A node's identity, its own record, and its place in a round."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.durations import bounded
from plaunch.rendezvous import JobRound, RendezvousStoreInfo

from plaunch_membership.bounds import MAX_NAME
from plaunch_membership.placement import Newcomer

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.rendezvous import JobSettings, RendezvousParameters, Store, WorldRanks

    from plaunch_membership.records import Record

_MOST_WORKERS = 1 << 16  # of one node


@dataclass(frozen=True)
class Identity:
    """The identity of this node.

    Args:
        node: its name, which no other node has, in printable ASCII without slashes.
        host: its host's name.
        pid: the agent's process id.
        address: under which other nodes reach it.
        is_host: whether this process hosts the store.
        run_id: the id of the job.
        min_nodes: how few nodes may form a round.
        max_nodes: how many a round has at most.
        job: the rest of the launch's settings.
    """

    node: str
    host: str
    pid: int
    address: str
    is_host: bool
    run_id: str
    min_nodes: int
    max_nodes: int
    job: JobSettings

    @classmethod
    def of_this_process(
        cls, params: RendezvousParameters, address: str, *, is_host: bool
    ) -> Identity:
        """The identity of an agent in this process; each agent has its own name."""
        host, pid = socket.gethostname(), os.getpid()
        return cls(
            node=f"{_plain(host)}~{pid}~{secrets.token_hex(4)}",
            host=host,
            pid=pid,
            address=address,
            is_host=is_host,
            run_id=params.run_id,
            min_nodes=params.min_nodes,
            max_nodes=params.max_nodes,
            job=params.job,
        )


def _plain(host: str) -> str:
    """A host's name as it may be part of a key."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in ".-_") else "-" for c in host)
    return plain[:200] or "host"


@dataclass(frozen=True)
class RoundPlace:
    """This node's place in one round of one incarnation; in any other it says nothing."""

    round: int
    attempt: int
    rank: int
    nodes: int
    ranks: WorldRanks
    master_addr: str
    master_port: int
    reason: str

    def to_round(self, open_store: Callable[[], Store] | None) -> JobRound:
        """The round as the agent receives it; `open_store` opens torch's store for programs."""
        return JobRound(
            None,
            self.rank,
            self.nodes,
            RendezvousStoreInfo(self.master_addr, self.master_port),
            attempt=self.attempt,
            ranks=self.ranks,
            reason=self.reason,
            round=self.round,
            open_store=open_store,
        )


@dataclass(frozen=True)
class Member:
    """A node of a round that was formed: its host, and how long it may need to come back."""

    host: str
    stop_timeout: float


@dataclass(frozen=True)
class NodeRecord(Newcomer):
    """A node's own record, when it joins a round.

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
