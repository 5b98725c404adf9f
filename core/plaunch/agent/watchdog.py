"""Detects an agent's loop that is stuck."""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CALL_BOUND = 10.0  # seconds of one call of a plugin's code in the loop
TURN_BOUND = 60.0  # seconds of one turn of the loop, beyond what stopping workers may take


class LoopWatchdog:
    """Records when the loop sleeps and wakes; any thread may ask whether it is overdue.

    A loop that sleeps is alive until its timeout, which may be infinite: while nodes meet, only the
    end of the rendezvous may wake it, hours later. One that is awake is alive for `bound` seconds,
    which exceed the longest stop of workers, and for less while it calls code of a plugin. Before
    its first sleep, and after its end, it is never overdue.

    Args:
        bound: seconds.
        progress: returns when the agent last made progress of unknown duration, on the monotonic
            clock: output shown on a slow console, which it waits for at the end.
        clock: seconds that never go back.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        bound: float = TURN_BOUND,
        *,
        progress: Callable[[], float] = lambda: -math.inf,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.bound = bound
        self._progress = progress
        self._clock = clock
        self._wall_clock = wall_clock
        # One thread writes these two numbers and others read them; each is replaced as a whole.
        self._last_call = clock()
        self._due = math.inf

    def sleeps(self, seconds: float | None) -> None:
        """Called when the loop goes to sleep for at most `seconds`; None for no timeout."""
        self._expect(math.inf if seconds is None else seconds + self.bound)

    def wakes(self) -> None:
        """Called when the loop wakes."""
        self._expect(self.bound)

    def waits(self) -> None:
        """Called before each of many bounded calls of plugins: the loop is alive meanwhile.

        A no-op before the loop has begun, and after its end.
        """
        if self._due != math.inf:
            self._expect(self.bound)

    def _expect(self, seconds: float) -> None:
        """The loop is alive now; its next call is due within `seconds`."""
        self._last_call = now = self._clock()
        self._due = now + seconds

    @contextlib.contextmanager
    def calling(self, seconds: float = CALL_BOUND) -> Iterator[None]:
        """The loop calls code of a plugin, which should not take longer than `seconds`."""
        self._expect(seconds)
        try:
            yield
        finally:
            self.wakes()

    def ends(self) -> None:
        """Called at the end of the loop."""
        self._expect(math.inf)

    def overdue(self) -> float:
        """Seconds since the last call of a loop whose next one is overdue; else 0."""
        due = self._due
        now = self._clock()
        if now <= due or now <= self._progress() + self.bound:
            return 0.0
        return now - self._last_call

    def patience(self) -> float:
        """Seconds between the last call of the loop and the next one due."""
        return self._due - self._last_call

    def last_progress(self) -> float:
        """When the loop was last alive, in seconds since the epoch: now, unless it is overdue."""
        return self._wall_clock() - self.overdue()
