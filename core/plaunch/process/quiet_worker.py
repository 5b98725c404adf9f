"""Decides when to find out whether a worker has ended its program, although nothing shows it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from plaunch.process.exit_evidence import REPORT_AFTER

_FIRST_PAUSE = 20.0  # seconds between two looks at one that runs its program; doubled
_LONGEST_PAUSE = 300.0


@dataclass
class QuietWorker:
    """When the main thread of a worker ran last, as far as looks have shown.

    A main thread that waits for threads at the end of its program does not run. One that waits for
    something else looks alike, so its stack is read: once while it waits, and more rarely each
    time.

    Args:
        activity: changes when the main thread runs; empty if unknown.
        since: when it was first seen, on the monotonic clock.
    """

    activity: bytes = b""
    since: float = 0.0
    _next_look: float = -math.inf
    _pause: float = _FIRST_PAUSE
    _has_looked: bool = False

    def note(self, activity: bytes, now: float) -> None:
        """Record what a look has found that began at `now`."""
        if activity != self.activity:
            self.activity, self.since, self._has_looked = activity, now, False

    def is_due(self, now: float) -> bool:
        """Whether its stack is to be read."""
        is_quiet = bool(self.activity) and now - self.since >= REPORT_AFTER
        return is_quiet and not self._has_looked and now >= self._next_look

    def note_look(self, now: float) -> None:
        """Record that its stack was read."""
        self._has_looked = True
        self._next_look = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
