"""A round, and the ranks that it has for the workers of this node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.agent.worker import Worker
from plaunch.rendezvous.job import JobRound, WorldRanks

if TYPE_CHECKING:
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


def create_workers(ranks: WorldRanks, local_world_size: int) -> list[Worker]:
    """The workers of one node, with their ranks."""
    return [
        Worker(
            local_rank=local_rank,
            global_rank=ranks.first_global + local_rank,
            role_rank=ranks.first_role + local_rank,
            world_size=ranks.world_size,
            role_world_size=ranks.role_world_size,
        )
        for local_rank in range(local_world_size)
    ]


def assign_alike(local_world_size: int, group_rank: int, group_world_size: int) -> WorldRanks:
    """Number the workers of one node when all nodes are like it, without asking anybody."""
    first = group_rank * local_world_size
    world_size = group_world_size * local_world_size
    return WorldRanks(first, world_size, first, world_size)
