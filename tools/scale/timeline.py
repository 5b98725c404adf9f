"""The virtual time of the model, and what is busy in it."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Timeline:
    """Events in the order of their times, which are seconds.

    Attributes:
        now: the time of the current event.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()  # of events of the same time

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Call `event` at a time."""
        heapq.heappush(self._events, (max(when, self.now), next(self._order), event))

    def run(self, until: Callable[[], bool], limit: float) -> bool:
        """Run events until a condition holds; False if it does not within `limit` seconds."""
        end = self.now + limit
        while not until():
            if not self._events or self._events[0][0] > end:
                self.now = end
                return False
            self.now, _, event = heapq.heappop(self._events)
            event()
        return True


class Core:
    """A core, which does one thing after the other."""

    def __init__(self, timeline: Timeline) -> None:
        self.busy = 0.0  # seconds, in all
        self.free_at = 0.0
        self._timeline = timeline

    def take(self, seconds: float) -> float:
        """Work for so long, once it is free; return when that is done."""
        self.free_at = max(self.free_at, self._timeline.now) + seconds
        self.busy += seconds
        return self.free_at
