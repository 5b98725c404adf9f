"""The pause before a round that follows a failure, as a node sees it that waits for the round."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from plaunch_membership.state import JobPhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_membership.state import JobState


class Pause:
    """Measures it from when this node has seen its state first: it is over no later than that.

    The leader measures it likewise, and another leader begins it anew. May be asked on any thread.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[int, int, float] | None = None
        self._end = 0.0

    def left(self, state: JobState | None) -> float:
        """Seconds of the pause that are left in this state of the job; 0 if there is none."""
        with self._lock:
            if state is None or state.phase is not JobPhase.FORMING or not state.pause:
                self._seen = None
                return 0.0
            seen = (state.round, state.term, state.pause)
            if seen != self._seen:
                self._seen, self._end = seen, self._clock() + state.pause
            return max(self._end - self._clock(), 0.0)
