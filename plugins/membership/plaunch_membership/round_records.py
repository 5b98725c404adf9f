"""The records of a round that its leader writes, before the state that refers to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.rendezvous import world_ranks

from plaunch_membership.keys import NODES_OF_A_PART
from plaunch_membership.operations import MultiSet, Routine, Set
from plaunch_membership.state import World

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch_membership.membership import Membership
    from plaunch_membership.node import NodeRecord
    from plaunch_membership.state import JobState


def write_round(
    membership: Membership, forming: JobState, members: Sequence[NodeRecord], count: int
) -> Routine[World]:
    """Write one slot for each of the `count` tickets, and the list of the nodes."""
    keys, round_, term = membership.keys, forming.round, forming.term
    slots: dict[int, Mapping[str, object]] = {
        ticket: {"rank": -1} for ticket in range(1, count + 1)
    }
    ranks = world_ranks((node.role, node.local_world_size) for node in members)
    for rank, (node, world_rank) in enumerate(zip(members, ranks, strict=True)):
        slots[node.ticket] = {
            "rank": rank,
            "node": node.node,
            "first": world_rank.first_global,
            "size": world_rank.world_size,
            "role_first": world_rank.first_role,
            "role_size": world_rank.role_world_size,
        }
    described = [
        {"node": node.node, "host": node.host, "stop_timeout": node.stop_timeout}
        for node in members
    ]
    for part, begin in enumerate(range(0, len(members), NODES_OF_A_PART)):
        key = keys.world(round_, term, part)
        nodes = described[begin : begin + NODES_OF_A_PART]
        yield Set(key, membership.codec.encode(key, {"nodes": nodes}))
    yield MultiSet(
        {
            (key := keys.slot(round_, term, ticket)): membership.codec.encode(key, slot)
            for ticket, slot in slots.items()
        }
    )
    return World(round_, term, len(members), count, members[0].address, members[0].port)
