"""The time limit of a check that waits for a resource to recover."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch.health import HealthOccasion

_PERIOD = 0.2  # seconds between two attempts
_MARGIN = 0.1  # share of the time that is kept for returning


class CheckDeadline:
    """The deadline of one run of a check; `end` brings it forward, from any thread."""

    def __init__(self) -> None:
        self._has_ended = threading.Event()
        self._until = 0.0  # on the monotonic clock
        self.seconds = 0.0  # how long the check may take

    def begin(self, occasion: HealthOccasion) -> None:
        """Start the clock."""
        self.seconds = occasion.timeout * (1 - _MARGIN)
        self._until = time.monotonic() + self.seconds

    @property
    def remaining(self) -> float:
        """Seconds that are left."""
        if self._has_ended.is_set():
            return 0.0
        return max(self._until - time.monotonic(), 0.0)

    def pause(self) -> bool:
        """Sleep before the next attempt; return False if no time is left."""
        return not self._has_ended.wait(min(_PERIOD, self.remaining)) and self.remaining > 0

    def end(self) -> None:
        """Leave no time from now on."""
        self._has_ended.set()
