"""Which nodes of an engine get a place in the job before its workers run: pure functions."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StartState(enum.IntEnum):
    """How far a node is; the lower numbers come first when places are given."""

    PLACED = 0  # its agent has its settings
    READY = 1
    STARTING = 2
    UNREACHABLE = 3


@dataclass(frozen=True)
class PlaceCandidate:
    """A node that may get a place.

    Args:
        index: its number; the first nodes are preferred.
        state: how far it is.
    """

    index: int
    state: StartState


def choose(
    candidates: Sequence[PlaceCandidate], *, min_nodes: int, max_nodes: int, prefers_ready: bool
) -> list[int]:
    """Return the indices of the nodes that get a place now; empty to wait for others.

    The job begins with its smallest number of nodes. The rendezvous then waits for others, up to
    `last_call_timeout`, and they get their places as soon as they are ready.

    Args:
        candidates: all nodes.
        min_nodes: the smallest number of nodes with which the job begins.
        max_nodes: the number of places.
        prefers_ready: whether a node that is ready takes the place of an earlier one that still
            starts. Otherwise the first nodes of the list that may come have the places.
    """

    def preference(one: PlaceCandidate) -> tuple[int, int]:
        is_late = prefers_ready and one.state is StartState.STARTING
        return (0 if one.state is StartState.PLACED else 1 + is_late, one.index)

    possible = [one for one in candidates if one.state is not StartState.UNREACHABLE]
    places = sorted(possible, key=preference)[:max_nodes]
    ready = [one.index for one in places if one.state is StartState.READY]
    has_begun = any(one.state is StartState.PLACED for one in places)
    return ready if has_begun or len(ready) >= min_nodes else []


def count_possible(candidates: Sequence[PlaceCandidate]) -> int:
    """Return how many nodes have come, or may still come."""
    return sum(one.state is not StartState.UNREACHABLE for one in candidates)


def is_full(candidates: Sequence[PlaceCandidate], max_nodes: int) -> bool:
    """Whether as many nodes as there are places have come."""
    return sum(one.state <= StartState.READY for one in candidates) >= max_nodes
