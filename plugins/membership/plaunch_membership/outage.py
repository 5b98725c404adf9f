"""Warns while a node cannot reach the store."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from plaunch_membership.reconnects import ReconnectLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.errors import RendezvousConnectionError

_log = logging.getLogger("plaunch")


class OutageReporter:
    """Logs a warning while the store does not answer any thread of a node. Thread-safe.

    Before the first answer, the agent reports that it waits for the store. This object then warns
    only if the log level hides the agent's report.

    Args:
        endpoint: the endpoint of the store, for messages.
        clock: a monotonic clock, in seconds.
        after: seconds from the first failure to the first warning.
        interval: seconds between two warnings.
        wake_agent: called at each failure, so that the agent notices when the outage is too long.
    """

    def __init__(
        self,
        endpoint: str,
        clock: Callable[[], float],
        after: float = 10.0,
        interval: float = 60.0,
        wake_agent: Callable[[], None] = lambda: None,
    ) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._after = after
        self._interval = interval
        self._wake_agent = wake_agent
        self._lock = threading.Lock()
        self._has_answered = False
        self._failing_since: float | None = None
        self._warn_at = 0.0
        self._has_warned = False  # of this outage
        self._reconnects = ReconnectLog(f"the store at {endpoint}", clock)

    def reconnecting(self) -> None:
        """Note that a stuck connection is replaced."""
        text = f"the store at {self._endpoint} does not answer; connecting again"
        self._reconnects.note(text)

    def failed(self, error: RendezvousConnectionError) -> None:
        """Note that an operation has failed, and warn if that is due."""
        self._wake_agent()
        now = self._clock()
        with self._lock:
            if self._failing_since is None:
                self._failing_since, self._warn_at = now, now + self._after
            if now < self._warn_at:
                return
            self._warn_at = now + self._interval
            seconds = now - self._failing_since
            is_reported = not self._has_answered and _log.isEnabledFor(logging.INFO)
            self._has_warned = self._has_warned or not is_reported
        if not is_reported:
            where = "" if error.names_store else f" at {self._endpoint}"
            _log.warning("waiting for the store%s, for %.0f s so far: %s", where, seconds, error)

    def recovered(self) -> None:
        """Note that the store has answered."""
        self._reconnects.note_answer()
        with self._lock:
            self._has_answered = True
            since, self._failing_since = self._failing_since, None
            has_warned, self._has_warned = self._has_warned, False
        if has_warned and since is not None:
            seconds = self._clock() - since
            _log.info("the store at %s answers again, after %.0f s", self._endpoint, seconds)
