"""Joining a round: meeting the other nodes, and the ranks of this node's workers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.agent.ranks import NodeInfo, assign_alike, assign_through_store, create_workers
from plaunch.agent.worker import GroupInfo, describe_worker
from plaunch.errors import PluginError
from plaunch.rendezvous.job import JobRound

if TYPE_CHECKING:
    from plaunch.agent.states import State
    from plaunch.agent.worker import Worker, WorkerGroup, WorkerSpec
    from plaunch.rendezvous.api import RendezvousInfo
    from plaunch.rendezvous.job import WorldRanks


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
        PluginError: the rendezvous has no room for all of this node's workers.
    """
    info = spec.rdzv_handler.next_rendezvous()
    if isinstance(info, JobRound):
        ranks = info.ranks
        _check(spec, ranks)
    else:
        node = NodeInfo(spec.role, spec.local_world_size)
        alike = os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL", "0") == "1"
        if info.store is None or info.world_size == 1 or alike:
            ranks = assign_alike(node, info.rank, info.world_size)
        else:
            ranks = assign_through_store(info.store, node, info.rank, info.world_size)
    return Round(info, create_workers(ranks, spec.local_world_size))


def _check(spec: WorkerSpec, ranks: WorldRanks) -> None:
    """Refuse ranks of a handler that has counted with fewer workers than this node runs."""
    size = spec.local_world_size
    if (
        ranks.first_global + size <= ranks.world_size
        and ranks.first_role + size <= ranks.role_world_size
    ):
        return
    raise PluginError(
        f"rendezvous backend {spec.rdzv_handler.get_backend()!r} gives the {size} workers of this "
        f"node, of role {spec.role!r}, ranks that its world does not have: {ranks}. It was created "
        "for other workers, and takes no notice of those of the WorkerSpec "
        "(RendezvousHandler.prepare)"
    )


def enter_round(group: WorkerGroup, formed: Round) -> None:
    """Give a group the place, the store and the ranks that a round has for it."""
    spec, store_info = group.spec, formed.info.bootstrap_store_info
    group.workers = formed.workers
    group.store = formed.info.store
    group.group_rank = formed.info.rank
    group.group_world_size = formed.info.world_size
    group.master_addr = spec.master_addr or store_info.master_addr
    group.master_port = spec.master_port or store_info.master_port


def describe_group(
    group: WorkerGroup, state: State, run_id: str, formed: Round | None = None
) -> GroupInfo:
    """What plugins are told of a group; of the round that it is about to enter, if `formed`."""
    attempt, number = state.attempt, state.round
    if formed is not None:
        attempt = state.attempt if formed.attempt is None else formed.attempt
        number = state.round + 1 if formed.number is None else formed.number
    return GroupInfo(
        run_id=run_id,
        role=group.spec.role,
        state=group.state,
        attempt=attempt,
        round=number,
        max_restarts=group.spec.max_restarts,
        group_rank=-1 if group.group_rank is None else group.group_rank,
        group_world_size=-1 if group.group_world_size is None else group.group_world_size,
        master_addr=group.master_addr or "",
        master_port=group.master_port or 0,
        workers=tuple(describe_worker(worker) for worker in group.workers),
    )
