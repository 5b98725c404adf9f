"""Chosen components that the agent's loop calls, so that those of third parties cannot hold it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from plaunch.errors import PluginError
from plaunch.plugin.calls import one_line
from plaunch.plugin.dispositions import kept_dispositions
from plaunch.process.stopping.signals import SignalAction
from plaunch.process.streams.logs import LogsDest, LogsSpecs
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection, Mapping

    from plaunch.process.binding import Binder, Binding
    from plaunch.process.stopping.signals import SignalPolicy

logger = logging.getLogger("plaunch")

POLICY_BOUND = 1.0  # seconds that a signal policy may think, about one signal or about all
START_BOUND = 60.0  # seconds that one may take for a start of the workers, or to clear up
HURRIED_CLOSE = 10.0  # seconds for clearing up when a signal has ended the job


class BoundedPolicy:
    """A signal policy that is asked on a thread, and not again once it has not answered in time.

    A signal that it says nothing about stops the job.

    Args:
        policy: the policy.
        who: the plugin, for messages.
    """

    def __init__(self, policy: SignalPolicy, who: str) -> None:
        self.who = who
        self._policy = policy
        self._listed: Collection[signal.Signals] | None = None
        self._is_off = False

    def signals(self) -> Collection[signal.Signals]:
        """What the policy says when it is first asked.

        Raises:
            PluginError: it has failed, or not answered in time.
        """
        if self._listed is None:
            with kept_dispositions(self.who, "signals"):
                call = BoundedCall("signal-policy", lambda: list(self._policy.signals()))
                has_returned = call.wait(POLICY_BOUND)
            if not has_returned:
                raise PluginError(
                    f"{self.who} has not said within {POLICY_BOUND:g} s which signals it handles"
                )
            if call.error is not None:
                why = one_line(call.error)
                raise PluginError(f"{self.who} failed in signals: {why}") from call.error
            listed: Any = call.result
            self._listed = listed
        return self._listed or ()

    def action(self, signum: signal.Signals) -> SignalAction:
        """What the policy says, or STOP; raises what the policy raises.

        Raises:
            PluginError: it ends the process.
        """
        if self._is_off:
            return SignalAction.STOP
        with kept_dispositions(self.who, f"action, for {signum.name}"):
            call = BoundedCall("signal-policy", lambda: self._policy.action(signum))
            has_returned = call.wait(POLICY_BOUND)
        if not has_returned:
            self._is_off = True
            logger.warning(
                "%s has not said within %g s what %s means; it is not asked again, and every "
                "signal that it lists stops the job",
                self.who,
                POLICY_BOUND,
                signum.name,
            )
            return SignalAction.STOP
        return _result(call, self.who, "action")  # type: ignore[no-any-return]


class BoundedLogsSpecs(LogsSpecs):
    """A logs spec that works on a thread, which is waited for as long as is sensible.

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
            PluginError: it has not returned in time, or by the time that the launch was to stop; it
                ends the process, or returns something else.
        """
        dest: LogsDest = self._call("reify", lambda: self._specs.reify(envs))
        if not hasattr(dest, "error_files"):
            raise PluginError(f"{self._who} returned {dest!r} from reify, which is no LogsDest")
        return dest

    @property
    def root_log_dir(self) -> str | None:
        """What the logs spec says."""
        return self._specs.root_log_dir

    @property
    def temporary_dir(self) -> str | None:
        """What the logs spec says; none if it is not made for plaunch."""
        return getattr(self._specs, "temporary_dir", None)

    def create_run_dir(self, run_id: str) -> str | None:
        """What the logs spec does.

        Raises:
            PluginError: as `reify`.
        """
        path: str | None = self._call("create_run_dir", lambda: self._specs.create_run_dir(run_id))
        return path

    def close(self, succeeded: bool) -> None:
        """What the logs spec does.

        Raises:
            PluginError: it has failed, or not returned in time.
        """
        with kept_dispositions(self._who, "close"):
            call = BoundedCall("logs-specs", lambda: self._specs.close(succeeded))
            has_returned = call.wait(HURRIED_CLOSE) or call.wait(
                START_BOUND - HURRIED_CLOSE, self._is_unwanted
            )
        if not has_returned:
            raise PluginError(f"{self._who} has not returned from close; it is left to itself")
        if call.error is not None:
            why = one_line(call.error)
            raise PluginError(f"{self._who} failed in close: {why}") from call.error

    def _call(self, method: str, function: Callable[[], object]) -> Any:
        return _for_a_start("logs-specs", self._who, method, function, self._is_unwanted)


class BoundedBinder:
    """A binder that thinks on a thread; what it has found to do is done where workers start.

    Args:
        binder: the binder.
        who: the plugin, for messages.
        is_unwanted: asked while it takes its time: whether the launch is to stop.
    """

    def __init__(self, binder: Binder, who: str, is_unwanted: Callable[[], bool]) -> None:
        self._binder = binder
        self._who = who
        self._is_unwanted = is_unwanted

    def plan(self, nprocs: int) -> Mapping[int, Binding]:
        """What the binder says.

        Raises:
            PluginError: it has not returned in time, or by the time that the launch was to stop; it
                ends the process.
        """
        return self._call("plan", lambda: self._binder.plan(nprocs))  # type: ignore[no-any-return]

    def environment(self, local_rank: int, environ: Mapping[str, str]) -> Mapping[str, str]:
        """What the binder says.

        Raises:
            PluginError: as `plan`.
        """
        return self._call(  # type: ignore[no-any-return]
            "environment", lambda: self._binder.environment(local_rank, environ)
        )

    def _call(self, method: str, function: Callable[[], object]) -> Any:
        return _for_a_start("binder", self._who, method, function, self._is_unwanted)


def _for_a_start(
    name: str,
    who: str,
    method: str,
    function: Callable[[], object],
    is_unwanted: Callable[[], bool],
) -> Any:
    with kept_dispositions(who, method):
        call = BoundedCall(name, function)
        has_returned = call.wait(START_BOUND, is_unwanted)
    if not has_returned:
        when = f"within {START_BOUND:g} s"
        if is_unwanted():
            # Nobody looks at why the workers did not start: they are not to start.
            when = "when the launch was to stop"
            logger.warning("%s had not returned from %s %s", who, method, when)
        raise PluginError(f"{who} has not returned from {method} {when}")
    return _result(call, who, method)


def _result(call: BoundedCall, who: str, method: str) -> Any:
    """What a call has returned; raises what it raised, unless that would end this process."""
    if call.error is None:
        return call.result
    if isinstance(call.error, Exception):
        raise call.error
    raise PluginError(f"{who} failed in {method}: {one_line(call.error)}") from call.error
