"""What an agent has told, kept for whoever asks for events later, if anybody does."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent.notifications import Notification
    from plaunch.events import Event

_MOST_KEPT = 5000


class LaunchEnd(NamedTuple):
    """The launch is over; `error` is what it raises."""

    error: BaseException | None


class Told(NamedTuple):
    """One thing that was told: its number, when on both clocks, and what.

    Args:
        number: counts from 0.
        wall: when, in seconds since the epoch.
        monotonic: when, in seconds on the clock that never goes back.
        what: a notification, or the end.
    """

    number: int
    wall: float
    monotonic: float
    what: Notification | LaunchEnd


class Memory:
    """Keeps the last few thousand things that the agent's thread has told; any thread reads."""

    def __init__(self) -> None:
        self._told: deque[Told] = deque(maxlen=_MOST_KEPT)
        self._count = 0

    def add(self, what: Notification | LaunchEnd) -> None:
        """Keep one more."""
        self._told.append(Told(self._count, time.time(), time.monotonic(), what))
        self._count += 1

    def since(self, number: int) -> list[Told]:
        """Those from a number on, as far as they are kept."""
        return [told for told in self._told.copy() if told.number >= number]


class Replay(Protocol):
    """Makes events of what was told, as they would have been made then."""

    def note(self, wall: float, monotonic: float, what: Notification) -> None:
        """Make those of a notification."""

    def finish(self, wall: float, monotonic: float, error: BaseException | None) -> None:
        """Make the last one."""


class LateEvents:
    """The events of a launch for one extension, made when it asks for them.

    Args:
        memory: what the agent has told.
        create_replay: makes what makes the events; it is given what to call with each.
    """

    def __init__(
        self, memory: Memory, create_replay: Callable[[Callable[[Event], None]], Replay]
    ) -> None:
        self._memory = memory
        self._create_replay = create_replay
        self._lock = threading.Lock()
        self._next = 0
        self._events: list[Event] = []
        self._replay: Replay | None = None

    def take(self) -> list[Event]:
        """Those since the last call, or since the launch has begun."""
        with self._lock:
            if self._replay is None:
                self._replay = self._create_replay(self._events.append)
            replay = self._replay
            for number, wall, monotonic, what in self._memory.since(self._next):
                self._next = number + 1
                if isinstance(what, LaunchEnd):
                    replay.finish(wall, monotonic, what.error)
                else:
                    replay.note(wall, monotonic, what)
            taken = self._events.copy()
            self._events.clear()
            return taken
