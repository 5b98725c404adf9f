"""The events of a launch for one who asks for them now and then, made when he does."""

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
    """Makes them from what the agent has told, which other threads add to meanwhile.

    Args:
        config: the launch.
        entry_point: what was run, as users call it.
        told: what the launch keeps of it. Each has a number; when it was, in seconds since the
            epoch and on the monotonic clock; and what it was: a notification or, at the end of the
            launch, what that raises, or None.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entry_point: str,
        told: deque[tuple[int, float, float, Notification | BaseException | None]],
    ) -> None:
        self._told = told
        self._lock = threading.Lock()
        self._next = 0
        self._events: list[Event] = []
        self._replay = Replay(config, entry_point, self._events.append)

    def take(self) -> list[Event]:
        """Those since the last call, or since the launch has begun."""
        with self._lock:
            for number, wall, monotonic, what in self._told.copy():
                if number < self._next:
                    continue
                self._next = number + 1
                if what is None or isinstance(what, BaseException):
                    self._replay.finish(wall, monotonic, what)
                else:
                    self._replay.note(wall, monotonic, what)
            taken = self._events.copy()
            self._events.clear()
            return taken
