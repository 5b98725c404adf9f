"""The hang timeouts of workers, given or learned from their heartbeats."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch_hang.beats import HeartbeatState

UNLEARNED = 1800.0  # seconds, before a timeout is learned
LEAST = 60.0  # seconds; the shortest learned timeout
_TIMES = 5  # the learned timeout is this many times the longest gap between heartbeats
_ENOUGH = 10  # heartbeats from which a timeout is learned


class HangTimeouts:
    """The timeouts of one launch; a learned timeout is kept across restarts.

    Args:
        given: the timeout in seconds, or None to learn it.
    """

    def __init__(self, given: float | None) -> None:
        self._given = given
        self._longest = 0.0  # of all workers and rounds
        self._has_learned = False

    def of(self, beat: HeartbeatState) -> float:
        """The timeout of a worker with these heartbeats; inf in a section without a limit."""
        base = self.outside(beat)
        return math.inf if beat.section < 0 else max(base, beat.section)

    def outside(self, beat: HeartbeatState) -> float:
        """The same, ignoring sections."""
        if self._given is not None:
            return self._given
        if beat.number >= _ENOUGH:
            self._longest, self._has_learned = max(self._longest, beat.longest), True
        if not (beat.number and self._has_learned):
            return UNLEARNED
        return max(_TIMES * self._longest, LEAST)
