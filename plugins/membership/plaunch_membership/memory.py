"""What a node remembers of its job, to bring it back after the store has lost the job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.restarts import Decided

    from plaunch_membership.node import RoundPlace
    from plaunch_membership.state import JobState


@dataclass
class JobMemory:
    """What a member of the last round knows of the job; it outlives incarnations.

    Args:
        began: when this node entered the job first, in seconds since the epoch; 0 before that.
        attempt: the highest attempt.
        excluded: the excluded hosts, and why.
        round: the last round that this node was a member of; -1 before the first one.
        nodes: the number of nodes of that round.
        finished: those of them that have left after the success of their workers, as far as this
            node knows as the leader; they do not return.
        decisions: the restart decisions that this node knows as the leader, by the round that
            followed each.
        health_decisions: those about nodes that have excluded themselves.
    """

    began: float = 0.0
    attempt: int = 0
    excluded: Mapping[str, str] = field(default_factory=dict)
    round: int = -1
    nodes: int = 0
    finished: frozenset[str] = frozenset()
    decisions: dict[int, Decided] = field(default_factory=dict)
    health_decisions: list[Decided] = field(default_factory=list)

    def note(self, state: JobState, place: RoundPlace | None) -> None:
        """Remember a state in which this node is a member, at `place`."""
        self.attempt = max(self.attempt, state.attempt)
        self.excluded = state.excluded or self.excluded
        if place is not None:
            if place.round != self.round:
                self.finished = frozenset()
            self.round, self.nodes = place.round, place.nodes

    def is_of_former_member(self, state: JobState) -> bool:
        """Whether this node was in the last round before the store lost the job.

        `state` is the state of the incarnation that has started again.
        """
        return self.nodes > 0 and state.world is None and self.round >= state.round - 1
