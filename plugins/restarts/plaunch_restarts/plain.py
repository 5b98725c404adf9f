"""The policies `always` and `never`, which ignore what failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.restarts import Decision, RestartAction

from plaunch_restarts.settings import RestartSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch.plugin import PluginContext
    from plaunch.restarts import Decided, Failure


class AlwaysRestartPolicy:
    """Restarts after every failure, regardless of `--max-restarts`; for services and for tests.

    Raises:
        UsageError: an option of restart policies other than `--restart-delay` is given.
    """

    def __init__(self, context: PluginContext) -> None:
        self._settings = RestartSettings(context)
        self._settings.reject_others("always", "restart_delay")

    def decide(self, failure: Failure, history: Sequence[Decided]) -> Decision:
        """Restart."""
        del history
        delay = max(self._settings.delay_after(failure.attempt), failure.retry_after or 0.0)
        after = f", after {delay:.3g} s" if delay else ""
        return Decision(
            RestartAction.RESTART,
            f"restart {failure.attempt + 1}{after} (--restart-policy=always)",
            delay=delay,
            costs=not failure.cause.is_outside,
        )


class NeverRestartPolicy:
    """Ends the job at the first failure, regardless of `--max-restarts`.

    Raises:
        UsageError: an option of restart policies is given.
    """

    def __init__(self, context: PluginContext) -> None:
        RestartSettings(context).reject_others("never")

    def decide(self, failure: Failure, history: Sequence[Decided]) -> Decision:
        """Stop."""
        del failure, history
        return Decision(RestartAction.STOP, "no restart (--restart-policy=never)")
