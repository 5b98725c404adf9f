"""Time in which this process ran: a suspended process has not waited."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class AwakeClock:
    """A clock that nearly stands still while the process does not run.

    A stopped process, a frozen container, a machine that is moved: all these look like a long time
    between two readings. Of each such time no more than `most` seconds count. So the clock must be
    read more often than that while the process runs; the agent's loop and the heartbeats do it. Any
    thread may read it.

    Args:
        most: seconds.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = clock()
        self._now = self._read_at

    def __call__(self) -> float:
        """Seconds since some moment in the past; never fewer than at the last call."""
        with self._lock:
            now = self._clock()
            self._now += min(now - self._read_at, self._most)
            self._read_at = now
            return self._now
