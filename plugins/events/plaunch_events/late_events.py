"""The events of a launch, made on demand for readers that poll."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from plaunch_events.replay import Replay

if TYPE_CHECKING:
    from collections import deque

    from plaunch import LaunchConfig
    from plaunch.agent import Notification
    from plaunch.events import Event


class LateEvents:
    """Converts the agent's notifications to events when `take` is called. Thread-safe.

    Args:
        config: the launch.
        entry_point: what was run, as users call it.
        notifications: the notifications that the launch keeps; other threads append to it. Each
            item has a number, its time in seconds since the epoch and on the monotonic clock, and
            the notification. The last item of a launch has the exception that ends it instead, or
            None.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entry_point: str,
        notifications: deque[tuple[int, float, float, Notification | BaseException | None]],
    ) -> None:
        self._notifications = notifications
        self._lock = threading.Lock()
        self._next = 0
        self._events: list[Event] = []
        self._replay = Replay(config, entry_point, self._events.append)

    def take(self) -> list[Event]:
        """Return the events since the last call, or since the launch began."""
        with self._lock:
            for number, wall, monotonic, item in self._notifications.copy():
                if number < self._next:
                    continue
                self._next = number + 1
                if item is None or isinstance(item, BaseException):
                    self._replay.finish(wall, monotonic, item)
                else:
                    self._replay.note(wall, monotonic, item)
            taken = self._events.copy()
            self._events.clear()
            return taken
