"""The log of what happens in a launch, which hooks, event handlers and extensions read."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from plaunch.agent.notifications import LaunchFinished

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent.notifications import Notification, Notify


class LogEntry(NamedTuple):
    """A notification in an `EventLog`.

    Args:
        number: counts the notifications of the log, from 0.
        wall: the time, in seconds since the epoch.
        monotonic: the time, in seconds of the monotonic clock.
        notification: what happened.
    """

    number: int
    wall: float
    monotonic: float
    notification: Notification


class EventLog:
    """The notifications of one launch, in order, with their times.

    A listener is called with each notification as it is added; a late reader calls `since` when it
    likes. The log keeps the first and the last notifications.

    Args:
        kept: how many of the last ones it keeps.
        clock, wall_clock: monotonic seconds, and seconds since the epoch.
    """

    def __init__(
        self,
        kept: int = 5000,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._count = 0
        self._first: LogEntry | None = None
        self._last: deque[LogEntry] = deque(maxlen=kept)
        self._listeners: list[Notify] = []

    def subscribe(self, listener: Notify) -> None:
        """Call `listener` with each further notification, after the earlier listeners.

        It must not raise, and returns quickly: it runs on the agent's thread.
        """
        self._listeners.append(listener)

    def add(self, notification: Notification) -> None:
        """Add a notification, and call the listeners with it."""
        with self._lock:
            entry = LogEntry(self._count, self._wall_clock(), self._clock(), notification)
            self._count += 1
            self._first = self._first or entry
            self._last.append(entry)
        for listener in self._listeners:
            listener(notification)

    def since(self, number: int) -> list[LogEntry]:
        """Return the entries from `number` on, without those that are not kept. Thread-safe."""
        with self._lock:
            new = min(self._count - number, len(self._last))
            entries = [self._last[-back] for back in range(new, 0, -1)]
            if self._first is not None and number == 0 and entries[0].number > 0:
                entries.insert(0, self._first)
        return entries

    def finish(self, error: BaseException | None) -> None:
        """Add the last notification; the log must have a first one."""
        if self._last:
            self.add(LaunchFinished(self._last[-1].notification.group, error))
