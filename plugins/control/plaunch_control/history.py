"""The last events of a launch, numbered, for whoever asks for them and for those to come."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.events import Event

KEPT = 5000  # events
_LOOK = 0.1  # seconds between two looks for a new one, while somebody waits


class Chapter(NamedTuple):
    """Some events of a launch.

    Args:
        events: in order.
        next: the number of the event that follows them.
        missed: how many of those that were asked for are not kept any more.
        is_over: whether no event follows.
    """

    events: list[Event]
    next: int
    missed: int
    is_over: bool


class History:
    """Keeps the last events of a launch; any thread may ask.

    Args:
        take: gives the events since it was called last.
        listener: is called with every event, in order.
        kept: how many are kept.
    """

    def __init__(
        self,
        take: Callable[[], list[Event]],
        listener: Callable[[Event], None],
        kept: int = KEPT,
    ) -> None:
        self._take = take
        self._listener = listener
        self._changed = threading.Condition()
        self._events: deque[Event] = deque(maxlen=kept)
        self._count = 0
        self._is_over = False

    def update(self) -> None:
        """Take what is new."""
        with self._changed:
            for event in self._take():
                self._events.append(event)
                self._count += 1
                self._is_over = event.name == "plaunch.launcher.finished"
                self._listener(event)
            self._changed.notify_all()

    def read_last(self, patience: float = 0.0) -> Event | None:
        """The last event of the launch; None if it has not come in `patience` seconds."""
        with self._changed:
            self.update()
            self._wait_until(time.monotonic() + patience, lambda: self._is_over)
            return self._events[-1] if self._is_over else None

    def read(self, after: int, patience: float = 0.0) -> Chapter:
        """The events from number `after` on, counted from 0, or the last so many if it is negative.

        If there is none yet, wait for one, `patience` seconds at most.
        """
        until = time.monotonic() + patience
        with self._changed:
            self.update()
            after = min(max(self._count + after, 0) if after < 0 else after, self._count)
            self._wait_until(until, lambda: self._count > after or self._is_over)
            first = self._count - len(self._events)
            events = list(self._events)[max(after - first, 0) :]
            return Chapter(events, self._count, max(first - after, 0), self._is_over)

    def _wait_until(self, end: float, condition: Callable[[], bool]) -> None:
        while not condition() and time.monotonic() < end:
            self._changed.wait(_LOOK)
            self.update()
