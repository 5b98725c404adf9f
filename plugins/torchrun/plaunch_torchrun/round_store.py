"""Exchanging ranks and waiting for peers over the store of a round, as torchrun's agents do.

Keys and values are torchrun's, so agents of both kinds could form one round.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

from plaunch.durations import bounded
from plaunch.errors import RendezvousStateError
from plaunch.rendezvous import WorldRanks, world_ranks

if TYPE_CHECKING:
    from plaunch.rendezvous import Store

_ROLE_INFO = "torchelastic/role_info/"
_ASSIGNED_RANKS = "torchelastic/assigned_ranks/"
_DONE = "torchelastic/agent/terminal_state"


def assign_ranks(
    store: Store, role: str, local_world_size: int, group_rank: int, group_world_size: int
) -> WorldRanks:
    """Number the workers of one node by exchanging sizes and roles over the round's store.

    Blocks until node 0 has the data of all nodes, or until the store's own timeout.

    Raises:
        RendezvousStateError: the store has invalid data under these keys.
    """
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
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RendezvousStateError(
            f"the round's store holds no valid ranks for node {group_rank}: {error}"
        ) from error
    return WorldRanks(first_global, world_size, first_role, role_world_size)


def wait_for_peers(store: Store, nodes: int, timeout: float) -> None:
    """Return when all `nodes` of the round have called this, or raise after `timeout` seconds.

    Blocks, so it runs in a background thread. After the timeout the agent continues, as torchrun's
    does.
    """
    if store.add(f"{_DONE}/num_members", 1) == nodes:
        store.set(f"{_DONE}/last_member", "<val_ignored>")
    store.wait([f"{_DONE}/last_member"], timedelta(seconds=bounded(timeout)))
