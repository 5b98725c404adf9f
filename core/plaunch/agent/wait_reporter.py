"""Messages while a round is not complete, and the timeout of the first one."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from plaunch.durations import format_duration
from plaunch.errors import RendezvousTimeoutError, one_line
from plaunch.rendezvous.api import RendezvousHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.rendezvous.job import JobRendezvous

logger = logging.getLogger("plaunch")

_FIRST_LINE = 3.0  # seconds of waiting before the first line
_LIVE_INTERVAL = 1.0  # seconds between two changes of a live line
_MOST_SILENCE = 60.0  # seconds between two plain lines; each pause is twice the one before


class WaitReporter:
    """Reports each wait in a live line, or in log lines that become rarer.

    Args:
        start_timeout: seconds from now until the first worker must run, or None for no bound.
        show: shows a line and replaces the one it showed before; an empty text clears it. None if
            lines cannot be replaced: they are logged then.
        clock: seconds that never go back.
        wall_clock: seconds since the epoch, for people.
    """

    def __init__(
        self,
        start_timeout: float | None = None,
        *,
        show: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._start_timeout = start_timeout
        self._show = show
        self._clock = clock
        self._wall_clock = wall_clock
        now = clock()
        self._start_by = None if start_timeout is None else now + start_timeout
        self._since = now
        self._since_time = 0.0
        self._silence = _FIRST_LINE
        self._speak_at = now

    def begin(self) -> None:
        """A wait begins."""
        self._since = self._clock()
        self._since_time = self._wall_clock()
        self._silence = _FIRST_LINE
        self._speak_at = self._since + self._silence

    def end(self) -> None:
        """The wait is over."""
        if self._show is not None:
            self._show("")

    def workers_started(self) -> None:
        """Workers run: `start_timeout` no longer applies."""
        self._start_by = None

    def pause(self) -> float:
        """Seconds until `look` has something to do."""
        until = self._speak_at if self._start_by is None else min(self._speak_at, self._start_by)
        return max(until - self._clock(), 0.0)

    def look(self, handler: RendezvousHandler | JobRendezvous) -> RendezvousTimeoutError | None:
        """Report what the agent waits for, if it is time; return the error if the wait must end."""
        now = self._clock()
        if self._start_by is not None and now >= self._start_by:
            self.end()
            return RendezvousTimeoutError(
                f"no worker of this node could be started within {self._start_timeout:g} s "
                f"(--start-timeout); it was waiting for {describe_wait(handler)}"
            )
        if now < self._speak_at:
            return None
        waited = format_duration(round(now - self._since), " ")
        text = f"waiting for {describe_wait(handler)}"
        if self._show is not None:
            self._show(f"{text} ({waited}; Ctrl-C ends it)")
            self._speak_at = now + _LIVE_INTERVAL
            return None
        since = time.strftime("%H:%M:%S", time.localtime(self._since_time))
        logger.info("%s (since %s, for %s; Ctrl-C ends it)", text, since, waited)
        self._silence = min(2 * self._silence, _MOST_SILENCE)
        self._speak_at = now + self._silence
        return None


def describe_wait(handler: Any) -> str:
    """What `next_rendezvous` of `handler` waits for, in a few words; never raises its errors."""
    # A handler that does not derive from plaunch's class may have no such method.
    describe = getattr(handler, "describe_wait", None)
    try:
        return RendezvousHandler.describe_wait(handler) if describe is None else str(describe())
    except Exception as error:  # noqa: BLE001 - a backend's bug must not cost the job
        return f"the rendezvous, which cannot say for what ({one_line(error)})"
