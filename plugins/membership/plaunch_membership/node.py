"""Who a node is, and what its place in a round is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch.rendezvous import JobSettings, WorldRanks


@dataclass(frozen=True)
class Identity:
    """Who this node is.

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


@dataclass(frozen=True)
class Member:
    """A node of a round that was formed: its host, and how long it may need to come back."""

    host: str
    stop_timeout: float
