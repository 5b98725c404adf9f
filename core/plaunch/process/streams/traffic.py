"""How much output of the workers passes through the launcher, and how far the console is behind."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from plaunch_streams.console import Console


class OutputCounts(NamedTuple):
    """How much output of the workers has passed through the launcher.

    Args:
        read_bytes: bytes that were read from the workers.
        lag_bytes: bytes that wait for the console.
        dropped_lines: lines that neither the console nor the disk could take.
    """

    read_bytes: int = 0
    lag_bytes: int = 0
    dropped_lines: int = 0


class Traffic:
    """Counts over all starts of a worker group; written by those who do the work, read by any.

    Nothing is locked: a number may be that of a moment ago.
    """

    def __init__(self) -> None:
        self.read_bytes = 0
        self._consoles: tuple[Console, ...] = ()
        self._dropped_before = 0

    def shows_on(self, consoles: Iterable[Console]) -> None:
        """New workers are started; their output goes to these consoles, not to the previous ones.

        What was dropped there stays counted.
        """
        dropped = self.counts().dropped_lines
        self._consoles = ()
        self._dropped_before = dropped
        self._consoles = tuple(consoles)

    def counts(self) -> OutputCounts:
        """The numbers of this moment."""
        consoles = self._consoles
        lag_bytes = sum(console.waiting_bytes for console in consoles)
        dropped = self._dropped_before + sum(console.missing_lines for console in consoles)
        return OutputCounts(self.read_bytes, lag_bytes, dropped)

    def last_shown(self) -> float:
        """When a console took something last, on the monotonic clock."""
        return max((console.last_progress for console in self._consoles), default=-math.inf)
