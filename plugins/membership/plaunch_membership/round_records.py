"""The records of a round that its leader writes, before the state that refers to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.rendezvous import world_ranks

from plaunch_membership.keys import NODES_OF_A_PART
from plaunch_membership.operations import MultiSet, Routine
from plaunch_membership.state import World

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch_membership.membership import Membership
    from plaunch_membership.node import NodeRecord
    from plaunch_membership.state import JobState


def write_round(
    membership: Membership, forming: JobState, members: Sequence[NodeRecord]
) -> Routine[World]:
    """Write the list of the nodes, and a slot for each of them."""
    keys, round_, term = membership.keys, forming.round, forming.term
    records: dict[str, Mapping[str, object]] = {}
    for part, begin in enumerate(range(0, len(members), NODES_OF_A_PART)):
        records[keys.world(round_, term, part)] = {
            "nodes": [
                {"node": node.node, "host": node.host, "stop_timeout": node.stop_timeout}
                for node in members[begin : begin + NODES_OF_A_PART]
            ]
        }
    ranks = world_ranks((node.role, node.local_world_size) for node in members)
    for rank, (node, world_rank) in enumerate(zip(members, ranks, strict=True)):
        records[keys.slot(round_, term, node.node)] = {
            "rank": rank,
            "first": world_rank.first_global,
            "size": world_rank.world_size,
            "role_first": world_rank.first_role,
            "role_size": world_rank.role_world_size,
        }
    # In this order: who deletes them finds the slots in the list of the nodes.
    yield MultiSet({key: membership.codec.encode(key, one) for key, one in records.items()})
    return World(round_, term, len(members), members[0].address, members[0].port)
