"""The nodes that take part in a round, and their ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Newcomer:
    """A node that has come to a round.

    Args:
        ticket: its place in the order of arrival.
        node: its name, which no other node has.
        host: its host's name, for messages.
        index: the index that it was given (`--node-rank`), or None.
        previous: its rank in the round before, or None if it was not in it. In a record of its
            own it is the rank that it had last, in any round; see `with_claims`.
        is_host: whether it hosts the store.
        local_world_size: how many workers it runs.
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


N = TypeVar("N", bound=Newcomer)


@dataclass(frozen=True)
class Refusal(Generic[N]):
    """A node that cannot take part, and why, in words for its user."""

    node: N
    reason: str


@dataclass(frozen=True)
class Placement(Generic[N]):
    """The nodes of a round: the members in order of their ranks, the spares, the refused."""

    members: list[N]
    spares: list[N]
    refused: list[Refusal[N]]


def place(nodes: Sequence[N], max_nodes: int) -> Placement[N]:
    """Decide who takes part in a round and who gets which rank; the order of `nodes` is no matter.

    - Of two nodes with the same index, the one that was in the round before takes part, else the
      earlier one; the other is refused.
    - Of more than `max_nodes`, those of the round before come first, then those with an index, the
      lowest first, then the others as they arrived. The remaining nodes are spares.
    - A given index is the rank, if there are that many members. Members of the round before keep
      their ranks if those are free, and otherwise are the first to get another. Then follow the
      host of the store and the newcomers as they arrived; last, by index, those whose index is not
      a rank.
    """
    accepted, refused = _without_doubles(sorted(nodes, key=_claim))
    members = accepted[:max_nodes]
    return Placement(_in_ranks(members), accepted[max_nodes:], refused)


def with_claims(nodes: Sequence[N], ranks: Mapping[str, int] | None) -> list[N]:
    """The nodes, each with its rank of the previous round, not the rank that it claims.

    A node that was away and comes back does not know that another node has its rank now.

    Args:
        nodes: those that have come.
        ranks: the rank of each node in the round before; None if this incarnation of the job has
            not had a round. Then the nodes are believed that had a rank in the latest of the rounds
            that they tell of.
    """
    if ranks is not None:
        return [replace(node, previous=ranks.get(node.node)) for node in nodes]
    latest = max((n.previous_round for n in nodes if n.previous_round is not None), default=None)
    return [
        node if node.previous_round == latest else replace(node, previous=None) for node in nodes
    ]


def _claim(node: Newcomer) -> tuple[int, int, int, str]:
    """The sort key of nodes by their claim to take part."""
    if node.previous is not None:
        return 0, node.previous, node.ticket, node.node
    if node.index is not None:
        return 1, node.index, node.ticket, node.node
    return 2, 0, node.ticket, node.node


def _without_doubles(nodes: list[N]) -> tuple[list[N], list[Refusal[N]]]:
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
    homeless: list[N] = []
    for node in rest:
        if node.previous is not None and node.previous < count and node.previous not in ranks:
            ranks[node.previous] = node
        else:
            homeless.append(node)
    holes = [rank for rank in range(count) if rank not in ranks]
    for rank, node in zip(holes, sorted(homeless, key=_order), strict=True):
        ranks[rank] = node
    return [ranks[rank] for rank in range(count)]


def _order(node: Newcomer) -> tuple[int, int, int, str]:
    """The sort key of the nodes that fill the holes."""
    if node.previous is not None:
        return 0, node.previous, node.ticket, node.node
    if node.index is not None:
        return 3, node.index, node.ticket, node.node
    return (1 if node.is_host else 2), 0, node.ticket, node.node
