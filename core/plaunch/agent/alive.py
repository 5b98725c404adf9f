"""Whether the agent's loop is alive: when it was last heard of, and when it must be again."""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CALL_BOUND = 10.0  # seconds of one call of a plugin's code in the loop
TURN_BOUND = 60.0  # seconds of one turn of the loop, beyond what stopping workers may take


class Alive:
    """Is told by the loop when it goes to sleep and when it is awake again; asked by any thread.

    A loop that sleeps is alive until its time is over, which may be never: while nodes meet, only
    the news that a round has formed may wake it, for hours. One that is awake is alive for `bound`
    seconds, which are more than a stop of workers may take, and for less while it is in a plugin's
    code that it cannot leave. One that was never heard of, or that has ended, is none of our
    business.

    Args:
        bound: seconds.
        progress: when something of use happened last that takes as long as it takes, on the
            monotonic clock: output shown on a slow console, which an agent waits for at the end.
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
        # Two numbers that one thread writes and others read; each is replaced as a whole.
        self._heard = clock()
        self._due = math.inf

    def sleeps(self, seconds: float | None) -> None:
        """The loop goes to sleep, for `seconds` at most, or until something happens."""
        self._expect(math.inf if seconds is None else seconds + self.bound)

    def wakes(self) -> None:
        """The loop is awake, and has something to do."""
        self._expect(self.bound)

    def waits(self) -> None:
        """The loop is awake, and waits for code of others as long as each may take; said often.

        Nothing where there is no loop, or none any more.
        """
        if self._due != math.inf:
            self._expect(self.bound)

    def _expect(self, seconds: float) -> None:
        """The loop is heard of now, and is to be within `seconds`."""
        self._heard = now = self._clock()
        self._due = now + seconds

    @contextlib.contextmanager
    def calling(self, seconds: float = CALL_BOUND) -> Iterator[None]:
        """The loop is in code of others, which should not take longer than `seconds`."""
        self._expect(seconds)
        try:
            yield
        finally:
            self.wakes()

    def ends(self) -> None:
        """There is no loop any more."""
        self._expect(math.inf)

    def overdue(self) -> float:
        """Seconds for which nothing has been heard of a loop that should have been; else 0."""
        due = self._due
        now = self._clock()
        if now <= due or now <= self._progress() + self.bound:
            return 0.0
        return now - self._heard

    def patience(self) -> float:
        """Seconds within which it should have been heard of."""
        return self._due - self._heard

    def last_progress(self) -> float:
        """When it was last seen at work, in seconds since the epoch: now, if it is alive."""
        return self._wall_clock() - self.overdue()
