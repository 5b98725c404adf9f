"""A buffer of the last events of a launch, numbered, for clients that poll."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.events import Event

KEPT = 5000  # events
_POLL = 0.1  # seconds between two checks for new events, while a client waits


class EventPage(NamedTuple):
    """Consecutive events of a launch.

    Args:
        events: the events.
        next: the number of the event after them.
        missed: how many requested events were dropped from the buffer.
        is_over: whether the last event of the launch is in the buffer.
    """

    events: list[Event]
    next: int
    missed: int
    is_over: bool


class EventBuffer:
    """Keeps the last events of a launch. Thread-safe.

    Args:
        take: returns the events since its last call.
        listener: called with every event, in order.
        kept: the number of events to keep.
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
        """Add new events."""
        with self._changed:
            for event in self._take():
                self._events.append(event)
                self._count += 1
                self._is_over = event.name == "plaunch.launcher.finished"
                self._listener(event)
            self._changed.notify_all()

    def read_last(self, patience: float = 0.0) -> Event | None:
        """Wait up to `patience` seconds for the last event of the launch; None on timeout."""
        with self._changed:
            self.update()
            self._wait_until(time.monotonic() + patience, lambda: self._is_over)
            return self._events[-1] if self._is_over else None

    def read(self, after: int, patience: float = 0.0) -> EventPage:
        """Return the events from number `after` on, counted from 0; if negative, from the end.

        If there is none yet, wait up to `patience` seconds for one.
        """
        until = time.monotonic() + patience
        with self._changed:
            self.update()
            after = min(max(self._count + after, 0) if after < 0 else after, self._count)
            self._wait_until(until, lambda: self._count > after or self._is_over)
            first = self._count - len(self._events)
            events = list(self._events)[max(after - first, 0) :]
            return EventPage(events, self._count, max(first - after, 0), self._is_over)

    def _wait_until(self, end: float, condition: Callable[[], bool]) -> None:
        while not condition() and time.monotonic() < end:
            self._changed.wait(_POLL)
            self.update()
