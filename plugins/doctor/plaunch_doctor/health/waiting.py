"""Waits of checks: for something to be well again, not longer than the launcher waits."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch.health import HealthOccasion

_PERIOD = 0.2  # seconds between two looks
_MARGIN = 0.1  # of the time, which is left for the answer


class Patience:
    """The time of one check; `end` ends it early, from any thread."""

    def __init__(self) -> None:
        self._has_ended = threading.Event()
        self._until = 0.0  # on the monotonic clock
        self.seconds = 0.0  # how long the check may take

    def begin(self, occasion: HealthOccasion) -> None:
        """Count from now."""
        self.seconds = occasion.timeout * (1 - _MARGIN)
        self._until = time.monotonic() + self.seconds

    @property
    def remaining(self) -> float:
        """Seconds that are left."""
        if self._has_ended.is_set():
            return 0.0
        return max(self._until - time.monotonic(), 0.0)

    def pause(self) -> bool:
        """Wait for a moment; False if there is no time left."""
        return not self._has_ended.wait(min(_PERIOD, self.remaining)) and self.remaining > 0

    def end(self) -> None:
        """There is no time left, from now on."""
        self._has_ended.set()
