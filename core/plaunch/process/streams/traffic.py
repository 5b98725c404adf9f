"""How much output of the workers passes through the launcher, and how far the console is behind."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from plaunch.process.streams.console import Console


class Traffic:
    """Counts over all starts of a worker group; written by those who do the work, read by any.

    Nothing is locked: a number may be that of a moment ago.
    """

    def __init__(self) -> None:
        self.read_bytes = 0
        self._consoles: tuple[Console, ...] = ()
        self._dropped_before = 0

    def shows_on(self, consoles: Iterable[Console]) -> None:
        """Workers are started whose output goes to these consoles, and no longer to those before.

        What was dropped there stays counted.
        """
        dropped = self.dropped_lines()
        self._consoles = ()
        self._dropped_before = dropped
        self._consoles = tuple(consoles)

    def dropped_lines(self) -> int:
        """Lines that were neither shown nor could be kept."""
        return self._dropped_before + sum(c.missing_lines for c in self._consoles)

    def lag_bytes(self) -> int:
        """Bytes that wait for the consoles."""
        return sum(console.waiting_bytes for console in self._consoles)

    def last_shown(self) -> float:
        """When a console took something last, on the monotonic clock."""
        return max((console.last_progress for console in self._consoles), default=-math.inf)
