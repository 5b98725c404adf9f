"""Workers that have been held for their timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.process import Held


class OverdueHolds:
    """Tracks how long the workers of one node are held."""

    def __init__(self) -> None:
        self._began: dict[Held, float] = {}  # when each hold was first seen
        self._taken: set[Held] = set()

    def take(
        self, now: float, held: Mapping[int, Held], timeouts: Mapping[int, float]
    ) -> dict[int, Held]:
        """Return the workers that have been held for their timeout, each hold once.

        Args:
            now: monotonic seconds.
            held: what holds workers now, by global rank.
            timeouts: the hang timeout of each worker in seconds, by global rank.
        """
        self._began = {hold: self._began.get(hold, now) for hold in held.values()}
        self._taken &= self._began.keys()
        late = {
            rank: hold
            for rank, hold in held.items()
            if hold not in self._taken and now - self._began[hold] >= timeouts[rank]
        }
        self._taken.update(late.values())
        return late
