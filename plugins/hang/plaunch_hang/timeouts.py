"""How long a worker may take without moving: as given, or learned from its heartbeats."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch_hang.beats import Beat

UNLEARNED = 1800.0  # seconds, while nothing is learned yet
LEAST = 60.0  # seconds that are learned at least
_TIMES = 5  # the longest gap that was seen
_ENOUGH = 10  # beats


class Timeouts:
    """The time-outs of one launch; what was learned is kept over restarts.

    Args:
        given: seconds, or None to learn them.
    """

    def __init__(self, given: float | None) -> None:
        self._given = given
        self._longest = 0.0  # of all workers and rounds
        self._has_learned = False

    def of(self, beat: Beat) -> float:
        """The seconds for a worker that has said this; inf if its section may take for ever."""
        base = self.outside(beat)
        return math.inf if beat.section < 0 else max(base, beat.section)

    def outside(self, beat: Beat) -> float:
        """The same, whatever section it is in."""
        if self._given is not None:
            return self._given
        if beat.number >= _ENOUGH:
            self._longest, self._has_learned = max(self._longest, beat.longest), True
        if not (beat.number and self._has_learned):
            return UNLEARNED
        return max(_TIMES * self._longest, LEAST)
