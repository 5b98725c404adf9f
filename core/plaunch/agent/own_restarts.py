"""What follows the failures of a node whose rendezvous does not know the whole job."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING

from plaunch.process.failures.failure import first_failure

if TYPE_CHECKING:
    from plaunch.agent.worker import RunResult
    from plaunch.restarts import Decided, Decision, RestartPolicy

_MOST_KNOWN = 1000  # failures; a service may fail for years


class OwnRestarts:
    """Asks the restart policy, and knows what it has decided before.

    Args:
        policy: the policy; None leaves everything to the budget.
    """

    def __init__(self, policy: RestartPolicy | None) -> None:
        self._policy = policy
        self._history: deque[Decided] = deque(maxlen=_MOST_KNOWN)
        self._began = -math.inf  # the work of the present round, on the monotonic clock

    def begin_work(self) -> None:
        """The workers of a round have been started."""
        self._began = time.monotonic()

    def decide(self, result: RunResult, attempt: int) -> Decision | None:
        """What follows a failure; None leaves that to the budget.

        Args:
            result: of the workers, some of which have failed.
            attempt: how many restarts were used.
        """
        if self._policy is None or not result.failures:
            return None
        from plaunch.restarts import Decided, failure_of  # failures only

        first, _ = first_failure(result.failures)
        started = time.monotonic() - self._began
        failure = failure_of(result.failures, first, started=started, attempt=attempt)
        decision: Decision | None = self._policy.decide(failure, tuple(self._history))
        if decision is not None:
            decision = decision.among((failure.host,))
            self._history.append(Decided(failure, decision))
        return decision
