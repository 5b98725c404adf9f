"""The nodes that take part in a round, and their ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Candidate:
    """A node that wants to be in a round.

    Args:
        ticket: its position in the order of arrival.
        node: its name, unique in the job.
        host: its hostname, for messages.
        index: the index given with `--node-rank`, or None.
        previous: its rank in the previous round, or None if it was not in it. In the node's own
            record, its last rank in any round; see `with_claims`.
        is_host: whether it hosts the store.
        local_world_size: the number of its workers.
        role: the role of its workers.
        previous_round: the number of the round in which it had the rank `previous`.
    """

    ticket: int
    node: str
    host: str
    index: int | None = None
    previous: int | None = None
    is_host: bool = False
    local_world_size: int = 1
    role: str = "default"
    previous_round: int | None = None


N = TypeVar("N", bound=Candidate)


@dataclass(frozen=True)
class Refusal(Generic[N]):
    """A node that is refused, and why, for its user."""

    node: N
    reason: str


@dataclass(frozen=True)
class Placement(Generic[N]):
    """The outcome: members in order of their ranks, spares, and refused nodes."""

    members: list[N]
    spares: list[N]
    refused: list[Refusal[N]]


def place(nodes: Sequence[N], max_nodes: int) -> Placement[N]:
    """Decide which nodes take part in a round, and their ranks. The order of `nodes` is irrelevant.

    - If two nodes have the same index, the one that was in the previous round takes part, else the
      earlier one. The other is refused.
    - If there are more than `max_nodes`, those of the previous round come first, then those with an
      index, the lowest first, then the others in order of arrival. The remaining nodes are spares.
    - A given index is the rank, if it is less than the number of members. Members of the previous
      round keep their ranks if those are free, and otherwise get the first free ones. Then follow
      the host of the store, the newcomers in order of arrival, and last, by index, those whose
      index is not a valid rank.
    """
    accepted, refused = _without_duplicates(sorted(nodes, key=_claim))
    members = accepted[:max_nodes]
    return Placement(_in_ranks(members), accepted[max_nodes:], refused)


def with_claims(nodes: Sequence[N], ranks: Mapping[str, int] | None) -> list[N]:
    """Return the nodes with their true ranks in the previous round instead of those they claim.

    A node that comes back does not know that another node has its rank now.

    Args:
        nodes: the nodes that have arrived.
        ranks: the rank of each node in the previous round; None if this incarnation of the job has
            not had a round. Then the claims for the latest round that any node claims are accepted.
    """
    if ranks is not None:
        return [replace(node, previous=ranks.get(node.node)) for node in nodes]
    latest = max((n.previous_round for n in nodes if n.previous_round is not None), default=None)
    return [
        node if node.previous_round == latest else replace(node, previous=None) for node in nodes
    ]


def _claim(node: Candidate) -> tuple[int, int, int, str]:
    """The sort key for who takes part."""
    if node.previous is not None:
        return 0, node.previous, node.ticket, node.node
    if node.index is not None:
        return 1, node.index, node.ticket, node.node
    return 2, 0, node.ticket, node.node


def _without_duplicates(nodes: list[N]) -> tuple[list[N], list[Refusal[N]]]:
    accepted: list[N] = []
    refused: list[Refusal[N]] = []
    owners: dict[int, N] = {}
    for node in nodes:
        owner = node if node.index is None else owners.setdefault(node.index, node)
        if owner is node:
            accepted.append(node)
        else:
            reason = (
                f"node index {node.index} was given to both {owner.host} ({owner.node}) and "
                f"{node.host} ({node.node}); give each node its own --node-rank"
            )
            refused.append(Refusal(node, reason))
    return accepted, refused


def _in_ranks(members: list[N]) -> list[N]:
    count = len(members)
    ranks: dict[int, N] = {}
    rest: list[N] = []
    for node in members:
        if node.index is not None and node.index < count:
            ranks[node.index] = node
        else:
            rest.append(node)
    displaced: list[N] = []
    for node in rest:
        if node.previous is not None and node.previous < count and node.previous not in ranks:
            ranks[node.previous] = node
        else:
            displaced.append(node)
    free_ranks = [rank for rank in range(count) if rank not in ranks]
    for rank, node in zip(free_ranks, sorted(displaced, key=_order), strict=True):
        ranks[rank] = node
    return [ranks[rank] for rank in range(count)]


def _order(node: Candidate) -> tuple[int, int, int, str]:
    """The sort key of nodes that get the free ranks."""
    if node.previous is not None:
        return 0, node.previous, node.ticket, node.node
    if node.index is not None:
        return 3, node.index, node.ticket, node.node
    return (1 if node.is_host else 2), 0, node.ticket, node.node
