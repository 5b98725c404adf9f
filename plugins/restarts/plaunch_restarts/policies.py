"""The restart policies `standard`, with budgets, delays and crash loops, `always` and `never`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from plaunch.durations import format_duration
from plaunch.restarts import Cause, Decision, RestartAction

from plaunch_restarts.settings import RestartSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from plaunch.plugin import PluginContext
    from plaunch.restarts import Decided, Failure


class StandardRestartPolicy:
    """Restarts up to `--max-restarts` times, unless the failure shows that a restart cannot help.

    Raises:
        UsageError: the options contradict each other.
    """

    def __init__(self, context: PluginContext) -> None:
        self._settings = RestartSettings(context)

    def decide(self, failure: Failure, history: Sequence[Decided]) -> Decision:
        """Decide what follows a failure, by the options."""
        reason = self._reason_to_stop(failure)
        if reason:
            return _stop(failure, reason)
        if failure.is_retryable is False:
            return _give_up(failure)
        if failure.missing_nodes and self._settings.ends_with_lost_node:
            return Decision(RestartAction.STOP, _no_replacement(failure))
        excluded = self._excluded_now(failure, history)
        if self._is_crash_loop(failure, history, excluded):
            loop = self._settings.crash_loop
            return _stop(
                failure,
                f"came back {loop.times} times within {format_duration(loop.seconds, ' ')} of the "
                f"start (--crash-loop={loop})",
                joint=" ",
            )
        counted = [d for d in history if _is_counted(d) and self._is_recent(d.failure, failure)]
        budget, used = self._budget_and_used(failure, counted)
        if budget is None:
            text, delay = f"restart that does not count: {_describe(failure)}", 0.0
        elif used >= budget:
            return Decision(RestartAction.STOP, self._format_spent(failure, budget))
        else:
            text = self._format_restart(failure, used + 1, budget)
            delay = self._settings.delay_after(self._total_restarts(failure, counted))
        requested = failure.retry_after or 0.0
        if requested or delay:
            text += f", after {max(delay, requested):.3g} s"
        if requested > delay:
            delay = requested
            text += f" as requested by {_where(failure)}: {failure.message}"
        if excluded:
            text += f", without {excluded}: {self._why_excluded(failure)}"
        return Decision(
            RestartAction.RESTART,
            text,
            delay=delay,
            without=(excluded,) if excluded else (),
            costs=budget is not None,
        )

    # --- no restart at all ------------------------------------------------------------------------

    def _reason_to_stop(self, failure: Failure) -> str:
        found = self._settings.never.find(failure)
        if found is not None:
            return f"no restart after {found} (--no-restart-on)"
        only = self._settings.only
        if only is not None and not failure.cause.is_outside and only.find(failure) is None:
            return f"restarts only after {only} (--restart-on)"
        return ""

    def _is_crash_loop(self, failure: Failure, history: Sequence[Decided], excluded: str) -> bool:
        loop = self._settings.crash_loop
        if not loop.times or failure.cause.is_outside or len(history) < loop.times - 1:
            return False
        if failure.is_retryable:
            return False  # the worker has requested a restart
        row = [d.failure for d in history[len(history) - loop.times + 1 :]] + [failure]
        if any(one.started > loop.seconds or _identity(one) != _identity(failure) for one in row):
            return False
        # An error in the script occurs on all ranks, and any of them may fail first. Without a
        # place in the script, failures are only the same if a rank failed each time.
        is_same = failure.place or frozenset.intersection(*map(_ranks, row))
        # Try without the excluded node first; if it was not the cause, the failure occurs again.
        return bool(is_same) and not (excluded and all(one.host == excluded for one in row))

    # --- the number of restarts -------------------------------------------------------------------

    def _is_recent(self, earlier: Failure, now: Failure) -> bool:
        window = self._settings.window
        return window is None or now.time - earlier.time < window

    def _group(self, failure: Failure) -> str:
        """The cause if it has its own budget, else an empty text."""
        return failure.cause.value if failure.cause.value in self._settings.budgets else ""

    def _budget_and_used(
        self, failure: Failure, counted: Sequence[Decided]
    ) -> tuple[float | None, int]:
        """The budget for such a failure, None if it is not counted, and the restarts used of it."""
        group = self._group(failure)
        used = sum(self._group(d.failure) == group for d in counted)
        if group:
            budget = self._settings.budgets[group]
            return None if budget == math.inf and failure.cause.is_outside else budget, used
        if failure.cause.is_outside:
            return None, 0
        if self._settings.window is None:  # the attempt counts restarts even if history is lost
            used = max(used, failure.attempt - (len(counted) - used))
        return self._settings.budget, used

    def _total_restarts(self, failure: Failure, counted: Sequence[Decided]) -> int:
        has_window = self._settings.window is not None
        return len(counted) if has_window else max(len(counted), failure.attempt)

    def _format_restart(self, failure: Failure, number: int, budget: float) -> str:
        group = self._group(failure)
        of = "" if budget == math.inf else f" of {budget}"
        return f"restart {number}{of}{f' for {group}' if group else ''}{self._within()}"

    def _format_spent(self, failure: Failure, budget: float) -> str:
        group = self._group(failure)
        option = f"{group}:{budget}" if group else str(budget)
        if not budget:
            # Without any restarts this needs no reason, unless only this cause has none.
            return f"none is allowed after {group} (--max-restarts={option})" if group else ""
        return f"all restarts are used{self._within()} (--max-restarts={option})"

    def _within(self) -> str:
        window = self._settings.window
        return "" if window is None else f" within {format_duration(window, ' ')}"

    # --- excluded nodes ---------------------------------------------------------------------------

    def _excluded_now(self, failure: Failure, history: Sequence[Decided]) -> str:
        """The host to exclude from now on; empty for none."""
        host = failure.host
        if not host or any(host in d.decision.without for d in history):
            return ""
        if failure.cause is Cause.HEALTH:
            return host
        limit = self._settings.exclude_after
        earlier = (d.failure for d in history)
        count = 1 + sum(self._is_recent(f, failure) and f.host == host for f in earlier)
        return host if limit is not None and count >= limit else ""

    def _why_excluded(self, failure: Failure) -> str:
        if failure.cause is Cause.HEALTH:
            return "it is not healthy"
        limit = self._settings.exclude_after
        what = "failure has" if limit == 1 else "failures have"
        return f"{limit} {what} begun there{self._within()} (--exclude-node-after={limit})"


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


def _stop(failure: Failure, why: str, joint: str = ": ") -> Decision:
    return Decision(RestartAction.STOP, f"{_describe(failure)}{joint}{why}")


def _give_up(failure: Failure) -> Decision:
    if failure.exception:
        return _stop(failure, "the worker reports that a restart cannot help")
    return Decision(RestartAction.STOP, f"{_where(failure)} gives up: {failure.message}")


def _no_replacement(failure: Failure) -> str:
    nodes = "1 node is" if failure.missing_nodes == 1 else f"{failure.missing_nodes} nodes are"
    return (
        f"{nodes} missing, and none waits to take a place; the job waits for others only with "
        "--max-restarts=0,node:inf"
    )


def _describe(failure: Failure) -> str:
    """Describe a failure: `rank 3 on node-b: ValueError: bad shape (train.py:12)`."""
    if failure.cause.is_outside and failure.message:
        return failure.message  # it names the node
    message = failure.message or f"failed ({failure.cause.value})"
    return f"{_where(failure)}: {message}{f' ({failure.place})' if failure.place else ''}"


def _where(failure: Failure) -> str:
    """The place of a failure: `rank 3 on node-b`."""
    where = f"rank {failure.rank}" if failure.rank >= 0 else "the launcher"
    if failure.host:
        where += f" on {failure.host}"
    return where


def _is_counted(decided: Decided) -> bool:
    return decided.decision.action is RestartAction.RESTART and decided.decision.costs


def _identity(failure: Failure) -> tuple[object, ...]:
    """A value that is equal for failures that count as the same."""
    if failure.exception:
        return failure.cause, failure.exception, failure.place
    return failure.cause, failure.exitcode, failure.place


def _ranks(failure: Failure) -> frozenset[int]:
    """The ranks that have failed with the exit code of the first failure."""
    others: Iterable[int] = (
        rank for rank, one in failure.failures.items() if one.exitcode == failure.exitcode
    )
    return frozenset({failure.rank, *others})
