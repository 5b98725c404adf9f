"""A restart policy: `--restart-policy=broken-device` excludes nodes with a broken device.

A script that finds its device broken exits with code 75. The next round excludes that node, and
is not counted as a restart. Other failures may occur `--max-restarts` times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.restarts import Decision, RestartAction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch.plugin import PluginContext
    from plaunch.restarts import Decided, Failure

BROKEN = 75  # the exit code


class BrokenDevicePolicy:
    """Excludes the node of a worker that exits with code 75."""

    def __init__(self, context: PluginContext) -> None:
        self._most = context.settings["max_restarts"]

    def decide(self, failure: Failure, history: Sequence[Decided]) -> Decision:
        """Restart without the broken node, or until `--max-restarts` is reached."""
        if failure.exitcode == BROKEN and failure.host:
            reason = f"restart: a device of {failure.host} is broken, says rank {failure.rank}"
            return Decision(RestartAction.RESTART, reason, without=[failure.host], costs=False)
        used = sum(earlier.decision.costs for earlier in history)
        if used == self._most:
            return Decision(RestartAction.STOP, f"{used} restarts did not help")
        return Decision(RestartAction.RESTART, f"restart {used + 1} of {self._most}")
