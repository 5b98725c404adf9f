"""Joining a round: meeting the other nodes, and the ranks of this node's workers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.agent.ranks import NodeInfo, assign_alike, assign_through_store, create_workers
from plaunch.rendezvous.job import JobRound

if TYPE_CHECKING:
    from plaunch.agent.worker import Worker, WorkerSpec
    from plaunch.rendezvous.api import RendezvousInfo


@dataclass(frozen=True)
class Round:
    """What a rendezvous brought: the round, and this node's workers with their ranks."""

    info: RendezvousInfo
    workers: list[Worker]

    @property
    def attempt(self) -> int | None:
        """The job's attempt, where the rendezvous knows it."""
        return self.info.attempt if isinstance(self.info, JobRound) else None

    @property
    def number(self) -> int | None:
        """How many worlds the job has formed before, where the rendezvous knows it."""
        return self.info.round if isinstance(self.info, JobRound) else None


def join_round(spec: WorkerSpec) -> Round:
    """Meet the other nodes and work out ranks; blocks, so it runs in a background thread.

    A rendezvous that knows the whole job brings the ranks along. Otherwise they are exchanged over
    the round's store; without one, and where `TORCH_ELASTIC_WORKER_IDENTICAL=1` says so, all nodes
    are taken to be alike.

    Raises:
        RendezvousError: the nodes did not meet, or their ranks cannot be told.
    """
    info = spec.rdzv_handler.next_rendezvous()
    if isinstance(info, JobRound):
        ranks = info.ranks
    else:
        node = NodeInfo(spec.role, spec.local_world_size)
        alike = os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL", "0") == "1"
        if info.store is None or info.world_size == 1 or alike:
            ranks = assign_alike(node, info.rank, info.world_size)
        else:
            ranks = assign_through_store(info.store, node, info.rank, info.world_size)
    return Round(info, create_workers(ranks, spec.local_world_size))
