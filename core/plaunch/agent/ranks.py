"""What the nodes of a round tell each other: their ranks, and that they are done.

The second half of it is for a rendezvous that does not know the whole job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.agent.worker import Worker
from plaunch.errors import RendezvousStateError
from plaunch.rendezvous.job import JobRound, WorldRanks, world_ranks

if TYPE_CHECKING:
    from plaunch.rendezvous.api import RendezvousInfo, Store

_ROLE_INFO = "torchelastic/role_info/"
_ASSIGNED_RANKS = "torchelastic/assigned_ranks/"
_DONE = "torchelastic/agent/terminal_state"


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
    """Number the workers of one node if all nodes are alike, without communication."""
    first = group_rank * local_world_size
    world_size = group_world_size * local_world_size
    return WorldRanks(first, world_size, first, world_size)


def assign_through_store(
    store: Store, role: str, local_world_size: int, group_rank: int, group_world_size: int
) -> WorldRanks:
    """Number the workers of one node by exchanging sizes and roles over the round's store.

    Keys and values are torchrun's, so that agents of both kinds could meet in one round. Blocks
    until node 0 has heard from all nodes; bounded by the store's own time-out.

    Raises:
        RendezvousStateError: the store holds something else under these keys.
    """
    import json  # noqa: PLC0415 - torchrun's handlers only

    store.set(
        f"{_ROLE_INFO}{group_rank}",
        json.dumps({"role": role, "rank": group_rank, "local_world_size": local_world_size}),
    )
    try:
        if group_rank == 0:
            keys = (f"{_ROLE_INFO}{rank}" for rank in range(group_world_size))
            nodes = (json.loads(store.get(key)) for key in keys)
            brought = [(str(node["role"]), int(node["local_world_size"])) for node in nodes]
            for rank, ranks in enumerate(world_ranks(brought)):
                values = (
                    ranks.first_global,
                    ranks.world_size,
                    ranks.first_role,
                    ranks.role_world_size,
                )
                store.set(f"{_ASSIGNED_RANKS}{rank}", json.dumps(values))
        answer = json.loads(store.get(f"{_ASSIGNED_RANKS}{group_rank}"))
        first_global, world_size, first_role, role_world_size = map(int, answer)
    except (ValueError, TypeError, KeyError) as error:
        raise RendezvousStateError(
            f"the round's store holds no valid ranks for node {group_rank}: {error}"
        ) from error
    return WorldRanks(first_global, world_size, first_role, role_world_size)


def wait_for_peers(store: Store, nodes: int, timeout: float) -> None:
    """Return when all `nodes` of the round have called this, or raise after `timeout` seconds.

    Blocks, so it runs in a background thread. Keys and order are torchrun's, so that agents of
    both kinds could meet. It goes on when the time is over, and so does our agent.
    """
    from datetime import timedelta  # noqa: PLC0415 - several nodes with a shared store only

    from plaunch.durations import bounded  # noqa: PLC0415 - as above

    if store.add(f"{_DONE}/num_members", 1) == nodes:
        store.set(f"{_DONE}/last_member", "<val_ignored>")
    store.wait([f"{_DONE}/last_member"], timedelta(seconds=bounded(timeout)))
