"""How long the command itself did not run, as after Ctrl-Z or while its machine was asleep."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plaunch_engines.errors import CommandSuspendedError

if TYPE_CHECKING:
    from collections.abc import Callable


def awake_or_not() -> float:
    """Return seconds that never go back, and that also pass while the machine is asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SuspensionMeter:
    """Measures the time between two turns of a loop whose turns are short.

    Args:
        limit: seconds after which agents that have got nothing end their workers; inf for never.
        clock: seconds that also pass while the machine is asleep.

    Attributes:
        longest: the longest time so far, in seconds.
    """

    def __init__(self, limit: float, clock: Callable[[], float] = awake_or_not) -> None:
        self.longest = 0.0
        self._limit = limit
        self._clock = clock
        self._last = clock()

    def measure(self) -> float:
        """Return the seconds since the last call."""
        last, self._last = self._last, self._clock()
        self.longest = max(self.longest, self._last - last)
        return self._last - last

    def error(self) -> CommandSuspendedError:
        """Return the error of a job whose agents have ended for this."""
        return CommandSuspendedError(
            f"this command was suspended for {self.longest:.0f} s (Ctrl-Z, SIGSTOP, or a machine "
            f"that was asleep), and the agents end their workers after {self._limit:g} s without a "
            "sign of it; do not suspend it for so long, or raise the limit (--silence-limit)"
        )
