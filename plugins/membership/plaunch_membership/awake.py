"""A clock of the time in which this process ran, without the time in which it was suspended."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class AwakeClock:
    """A clock that nearly stops while the process is suspended.

    A stopped process, a frozen container or a migrated machine shows as a long time between two
    readings. No more than `most` seconds of it count, so a running process must read the clock more
    often than that; the agent's loop and the heartbeats do. Thread-safe.

    Args:
        most: the longest time between two readings that counts, in seconds.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = clock()
        self._now = self._read_at

    def __call__(self) -> float:
        """Seconds since an arbitrary start; never decreases."""
        with self._lock:
            now = self._clock()
            self._now += min(now - self._read_at, self._most)
            self._read_at = now
            return self._now
