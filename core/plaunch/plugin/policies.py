"""The signal policy and the restart policy of a launch, called with a time limit.

A policy that fails is replaced, because a job needs a decision. A launch without failures does not
import the default restart policy.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from plaunch.errors import PluginError, SignalException, UnknownNameError, UsageError, one_line
from plaunch.plugin.guard import NotReturnedError
from plaunch.plugin.kinds import RESTART_POLICIES
from plaunch.process.signals import SignalAction

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection, Sequence

    from plaunch.options import Option
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.guard import CallGuard
    from plaunch.plugin.manager import PluginManager
    from plaunch.process.signals import SignalPolicy
    from plaunch.restarts import Decided, Decision, Failure, RestartPolicy

logger = logging.getLogger("plaunch")

_LONGEST_REASON = 1000  # characters


class LaunchSignalPolicy:
    """Calls the signal policy of one launch.

    A policy that does not return in time is not called again: from then on every signal that it
    lists stops the job.

    Args:
        policy: the policy.
        guard: calls it.
        who: its plugin, for messages.
    """

    def __init__(self, policy: SignalPolicy, guard: CallGuard, who: str) -> None:
        self.who = who
        self._policy = policy
        self._guard = guard
        self._listed: Collection[signal.Signals] | None = None
        self._is_off = False

    def signals(self) -> Collection[signal.Signals]:
        """Return the signals that the policy handles; calls it once.

        Raises:
            PluginError: it failed, or has not returned in time.
        """
        if self._listed is None:
            self._listed = self._call("signals", lambda: list(self._policy.signals()))
        return self._listed

    def action(self, signum: signal.Signals) -> SignalAction:
        """Return the policy's decision, or STOP if it has not returned in time.

        Raises:
            PluginError: it failed.
        """
        if self._is_off:
            return SignalAction.STOP
        try:
            action: SignalAction = self._call("action", partial(self._policy.action, signum))
        except NotReturnedError:
            self._is_off = True
            logger.warning(
                "%s has not returned within %g s from action for %s; plaunch does not call it "
                "again, and every signal that it lists stops the job",
                self.who,
                self._guard.limits.decision,
                signum.name,
            )
            return SignalAction.STOP
        return action

    def _call(self, method: str, function: Callable[[], object]) -> Any:
        return self._guard.call(self.who, method, function, self._guard.limits.decision)


class LaunchRestartPolicy:
    """Calls the restart policy of one launch after each failure.

    If it raises, returns an invalid decision, or has not returned within a second, a warning names
    it, and `standard` decides. A policy that was too slow is not called again. If `standard` is not
    installed, `--max-restarts` alone decides.

    Args:
        manager: finds the policies.
        context: the launch; its settings have the policy's name and the given options.

    Raises:
        UsageError: no policy has the name, or one of its options is invalid.
        PluginError: the policy cannot be loaded or created.
    """

    def __init__(self, manager: PluginManager, context: PluginContext) -> None:
        self._manager = manager
        self._context = context
        self._made: dict[str, RestartPolicy] = {}
        self._slow: set[str] = set()
        self.name = str(context.settings.get("restart_policy", RESTART_POLICIES.default))
        self._names = self._find_names()
        if self.name != RESTART_POLICIES.default:
            self._policy(self.name)
        if self._is_set():  # without options, the default policy is valid
            self._policy(RESTART_POLICIES.default)

    def _find_names(self) -> tuple[str, ...]:
        """Return the names of the policies to call, in this order."""
        default = RESTART_POLICIES.default
        if self.name != default:
            self._manager.check_name(RESTART_POLICIES, self.name)
        try:
            self._manager.check_name(RESTART_POLICIES, default)
        except UsageError as error:
            if self.name == default and not isinstance(error, UnknownNameError):
                raise  # it is blocked
            return () if self.name == default else (self.name,)
        return tuple(dict.fromkeys((self.name, default)))

    def shared_settings(self) -> dict[str, str]:
        """Return the options that must be equal on all nodes of a job, and their values as texts.

        Options with their default are left out.
        """
        settings = self._context.settings
        shared = {RESTART_POLICIES.flag: self.name}
        by_cause: Any = settings.get("max_restarts_by_cause")
        if by_cause:
            from plaunch.restarts import format_budgets  # if there are any

            total: Any = settings["max_restarts"]
            shared["--max-restarts"] = format_budgets(total, by_cause)
        if self._names[1:] or self._values():
            for option, value in itertools.chain(*map(self._own_options, self._names)):
                if value != option.default:
                    shared[option.names[-1]] = str(value)
        return shared

    def decide(self, failure: Failure, history: Sequence[Decided]) -> Decision:
        """Decide what follows a failure; see `RestartPolicy`. Never raises what a policy raises.

        If no policy decides, `--max-restarts` alone does, as in torchrun.
        """
        for name, other in zip(self._names, (*self._names[1:], ""), strict=False):
            if name in self._slow:
                continue
            instead = f"the restart policy {other!r}" if other else "--max-restarts alone"
            try:
                return self._ask(name, failure, history)
            except SignalException:
                raise
            except NotReturnedError as error:
                self._slow.add(name)
                logger.warning("%s; %s decides from now on", error, instead)
            except Exception as error:  # noqa: BLE001 - the job needs a decision in any case
                text = str(error) if isinstance(error, PluginError) else one_line(error)
                logger.warning("%s; %s decides instead", text, instead)
        return self._count(failure)

    def _ask(self, name: str, failure: Failure, history: Sequence[Decided]) -> Decision:
        policy = self._policy(name)
        who = self._manager.who_made(policy)
        decide, guard = partial(policy.decide, failure, history), self._manager.guard
        return _checked(guard.call(who, "decide", decide, guard.limits.decision), who)

    def _policy(self, name: str) -> RestartPolicy:
        if name not in self._made:
            options = {option.dest: value for option, value in self._own_options(name)}
            context = replace(self._context, options=options)
            self._made[name] = self._manager.make(RESTART_POLICIES, name, context)
        return self._made[name]

    def _own_options(self, name: str) -> list[tuple[Option, object]]:
        return self._manager.own_options(RESTART_POLICIES, name, self._values())

    def _is_set(self) -> bool:
        """Whether the user has given an option of the default policy."""
        values, name = self._values(), RESTART_POLICIES.default
        return (
            bool(values)
            and name in self._names
            and any(o.dest in values for o, _ in self._own_options(name))
        )

    def _values(self) -> dict[str, object]:
        values: Any = self._context.settings.get("options", {})
        return {**values}

    def _count(self, failure: Failure) -> Decision:
        from plaunch.restarts import Decision, RestartAction, ends_with_lost_node  # failures only

        settings = self._context.settings
        total: Any = settings.get("max_restarts", 0)
        by_cause: Any = settings.get("max_restarts_by_cause") or {}
        nodes: Any = settings.get("min_nodes"), settings.get("max_nodes")
        if failure.cause.is_outside and not (
            failure.missing_nodes and ends_with_lost_node(total, by_cause, *nodes)
        ):
            return Decision(RestartAction.RESTART, costs=False)
        if failure.attempt >= total:
            return Decision(RestartAction.STOP, f"no restart is left (--max-restarts={total})")
        return Decision(RestartAction.RESTART, f"restart {failure.attempt + 1} of {total}")


def _checked(decision: object, who: str) -> Decision:
    """Return the decision of a policy, with its reason as one line.

    Raises:
        PluginError: it is not a decision.
    """
    from plaunch.restarts import Decision  # failures only
    from plaunch.texts import printable

    if not isinstance(decision, Decision):
        raise PluginError(f"{who} returned {decision!r} from decide, not a Decision")
    # The reason may quote a worker.
    reason = printable(" ".join(decision.reason.split()), _LONGEST_REASON)
    return replace(decision, reason=reason, without=tuple(decision.without))
