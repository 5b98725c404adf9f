"""The delay before a restart, as seen by a node that waits for the round."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from plaunch_membership.state import JobPhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_membership.state import JobState


class RestartDelay:
    """Measures the delay from when this node first read its state, so it ends no later than here.

    The leader measures it in the same way, and a new leader starts it again. Thread-safe.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[int, int, float] | None = None
        self._end = 0.0

    def left(self, state: JobState | None) -> float:
        """Seconds of the delay that are left in this state of the job; 0 without a delay."""
        with self._lock:
            if state is None or state.phase is not JobPhase.FORMING or not state.pause:
                self._seen = None
                return 0.0
            seen = (state.round, state.term, state.pause)
            if seen != self._seen:
                self._seen, self._end = seen, self._clock() + state.pause
            return max(self._end - self._clock(), 0.0)
