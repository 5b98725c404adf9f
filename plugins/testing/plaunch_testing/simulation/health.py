"""Health checks of a simulated host, which find what the script says."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from plaunch.doctor import Finding

    from plaunch_testing.simulation.hub import Hub, SimulatedProcess

__all__ = ["SimulatedHealthChecks"]


class SimulatedHealthChecks:
    """The checks of one launch: `plaunch.health.HealthChecks`.

    Args:
        hub: has the clock.
        process: that of the agent.
        takes: seconds of a check.
    """

    timeout = 10.0

    def __init__(self, hub: Hub, process: SimulatedProcess, takes: float) -> None:
        self._hub = hub
        self._process = process
        self._takes = takes
        self._until = math.inf

    def begin(self, wake: Callable[[], None], *, is_restart: bool) -> None:
        """Start the checks."""
        self._until = self._hub.now + self._takes

        def check() -> None:
            self._hub.sleep(self._takes)
            wake()

        self._hub.spawn(check, "health check", self._process)

    def remaining(self) -> float:
        """Return the seconds left to wait."""
        return max(self._until - self._hub.now, 0.0)

    def verdict(self) -> str:
        """Return why the node is excluded, or an empty text."""
        return "" if self._process.host.is_healthy else "the simulated health check fails"

    def calls(self) -> Mapping[str, Callable[[], Iterable[Finding]]]:
        """None: there is no doctor."""
        return {}

    def close(self) -> None:
        """Nothing is left."""
