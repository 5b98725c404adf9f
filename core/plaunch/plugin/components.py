"""Chosen components that the agent's loop calls, so that those of third parties cannot hold it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from plaunch.errors import PluginError
from plaunch.plugin.bounded import BoundedCall
from plaunch.plugin.dispositions import kept_dispositions
from plaunch.process.logs import LogsDest, LogsSpecs
from plaunch.process.signals import SignalAction

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection

    from plaunch.process.signals import SignalPolicy

logger = logging.getLogger("plaunch")

ACTION_BOUND = 1.0  # seconds that a signal policy may think about one signal
REIFY_BOUND = 60.0  # seconds that a logs spec may take to make its folders


class BoundedPolicy:
    """A signal policy that is asked on a thread, and not again once it has not answered in time.

    A signal that it says nothing about stops the job.
    """

    def __init__(self, policy: SignalPolicy, who: str) -> None:
        self._policy = policy
        self._who = who
        self._is_off = False

    def signals(self) -> Collection[signal.Signals]:
        """What the policy says."""
        return self._policy.signals()

    def action(self, signum: signal.Signals) -> SignalAction:
        """What the policy says, or STOP; raises what the policy raises."""
        if self._is_off:
            return SignalAction.STOP
        with kept_dispositions(self._who, f"action, for {signum.name}"):
            call = BoundedCall("signal-policy", lambda: self._policy.action(signum))
            has_returned = call.wait(ACTION_BOUND)
        if not has_returned:
            self._is_off = True
            logger.warning(
                "%s has not said within %g s what %s means; it is not asked again, and every "
                "signal that it lists stops the job",
                self._who,
                ACTION_BOUND,
                signum.name,
            )
            return SignalAction.STOP
        if call.error is not None:
            raise call.error
        action: Any = call.result
        return action  # type: ignore[no-any-return]


class BoundedLogsSpecs(LogsSpecs):
    """A logs spec that makes its folders on a thread, which is waited for as long as is sensible.

    Args:
        specs: the logs spec.
        who: the plugin, for messages.
        is_unwanted: asked while it takes its time: whether the launch is to stop.
    """

    def __init__(self, specs: LogsSpecs, who: str, is_unwanted: Callable[[], bool]) -> None:
        super().__init__()
        self._specs = specs
        self._who = who
        self._is_unwanted = is_unwanted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._specs, name)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """What the logs spec says.

        Raises:
            PluginError: it has not returned in time, or by the time that the launch was to stop.
        """
        with kept_dispositions(self._who, "reify"):
            call = BoundedCall("logs-specs", lambda: self._specs.reify(envs))
            has_returned = call.wait(REIFY_BOUND, self._is_unwanted)
        if not has_returned:
            when = f"within {REIFY_BOUND:g} s"
            if self._is_unwanted():
                # Nobody looks at why the workers did not start: they are not to start.
                when = "when the launch was to stop"
                logger.warning("%s had not returned from reify %s", self._who, when)
            raise PluginError(f"{self._who} has not returned from reify {when}")
        if call.error is not None:
            raise call.error
        dest: Any = call.result
        return dest  # type: ignore[no-any-return]

    @property
    def root_log_dir(self) -> str | None:
        """What the logs spec says."""
        return self._specs.root_log_dir

    def create_run_dir(self, run_id: str) -> str | None:
        """What the logs spec does."""
        return self._specs.create_run_dir(run_id)

    def close(self, succeeded: bool) -> None:
        """What the logs spec does."""
        self._specs.close(succeeded)
