"""Which workers have just been held for as long as their time-out, from look to look."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.process import Held


class LateHolds:
    """The workers of one node that something holds."""

    def __init__(self) -> None:
        self._began: dict[Held, float] = {}  # when each was seen first
        self._taken: set[Held] = set()

    def take(
        self, now: float, held: Mapping[int, Held], timeouts: Mapping[int, float]
    ) -> dict[int, Held]:
        """Those that have been held for their time-out, and were not taken before.

        Args:
            now: seconds that never go back.
            held: what holds workers now, by global rank.
            timeouts: seconds within which each worker should move.
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
