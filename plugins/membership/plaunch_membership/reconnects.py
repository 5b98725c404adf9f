"""Logs that connections to a store are opened again, without one line for each."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from plaunch.durations import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("plaunch")

_CALM = 30.0  # seconds without another connection, after which the outage is over


class ReconnectLog:
    """Logs the first new connection of an outage, and at its end their number and how long it took.

    Under load, connections fail again and again: each of them alone is not worth a line.
    Thread-safe.

    Args:
        store: the store in messages, such as `etcd`.
        clock: a monotonic clock, in seconds.
        calm: seconds without another connection, after which the outage is over.
    """

    def __init__(self, store: str, clock: Callable[[], float], calm: float = _CALM) -> None:
        self._store = store
        self._clock = clock
        self._calm = calm
        self._lock = threading.Lock()
        self._count = 0  # of this outage
        self._first = self._last = 0.0

    def note(self, text: str) -> None:
        """Note another connection; `text` is logged for the first one of an outage."""
        self.note_answer()
        with self._lock:
            self._count += 1
            self._last = self._clock()
            if self._count > 1:
                return
            self._first = self._last
        _log.info("%s", text)

    def note_answer(self) -> None:
        """Note that the store has answered, and log the end of an outage."""
        if not self._count:
            return
        with self._lock:
            count, lasted = self._count, self._last - self._first
            if not count or self._clock() - self._last < self._calm:
                return
            self._count = 0
        if count > 1:
            _log.info(
                "%s answers steadily again: it was connected %d times within %s",
                self._store,
                count,
                format_duration(max(round(lasted), 1), " "),
            )
