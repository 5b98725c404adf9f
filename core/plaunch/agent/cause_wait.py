"""The wait for the cause of failures that only report a lost peer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plaunch.agent.worker import WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent.worker import RunResult

# Seconds for a worker to exit after its exception. Its connections close before its exit is seen,
# so its peers fail first, and stopping it would hide that it has failed by itself.
_CAUSE_WAIT = 2.0


class CauseWait:
    """Decides how long a node delays the report of failures that only report a lost peer.

    Other failures are never delayed, nor is one that another node has reported.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: float | None = None

    def begin_round(self) -> None:
        """The workers of another round have been started."""
        self._until = None

    def is_on(self, result: RunResult, *, others: bool) -> bool:
        """Whether to wait for the cause of these failures.

        Args:
            result: of the workers of this node.
            others: whether there are workers, here or on other nodes, that may be the cause.
        """
        failures = result.failures
        if result.state is not WorkerState.FAILED or not failures or not others:
            return False
        if result.early_ends or any(not failure.is_consequence for failure in failures.values()):
            return False
        if self._until is None:
            self._until = self._clock() + _CAUSE_WAIT
        return self._clock() < self._until

    def end(self) -> None:
        """End the wait, for the rest of the round: another cause is known."""
        self._until = self._clock()

    def due(self) -> float | None:
        """Seconds until the wait is over; None if there is none."""
        left = 0.0 if self._until is None else self._until - self._clock()
        return left if left > 0 else None
