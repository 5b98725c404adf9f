"""The settings of the restart policies of one launch, checked against each other."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from plaunch.durations import format_duration
from plaunch.errors import UsageError
from plaunch.restarts import ends_with_lost_node

from plaunch_restarts.values import (
    Conditions,
    CrashLoop,
    Delay,
    Window,
    read_conditions,
    read_crash_loop,
    read_delay,
    read_failure_count,
    read_window,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.plugin import PluginContext

    T = TypeVar("T")

_NO_DELAY = Delay(0.0, 0.0, 0.0)
_NO_LOOP = CrashLoop(0, 0.0)
_DEFAULT_LOOP = CrashLoop(3, 30.0)
# Up to this budget, crash loops are not detected, so that the number of restarts is torchrun's.
_SMALL_BUDGET = 3


class RestartSettings:
    """The options of the restart policies of one launch.

    Attributes:
        budget: the number of restarts.
        budgets: the number of restarts after failures of a cause with its own budget, by cause;
            inf for any number.
        ends_with_lost_node: whether the job does not wait for a node in the place of a lost one.
        window: how long a restart counts, in seconds; None for no limit.
        crash_loop: when repeated failures are a crash loop.
        only: restart only after these failures of workers; None for all.
        never: never restart after these failures.
        exclude_after: number of failures on a node after which it is excluded; None for never.

    Raises:
        UsageError: an option has an invalid value, or two options contradict each other.
    """

    def __init__(self, context: PluginContext) -> None:
        self._options = context.options
        settings: Mapping[str, Any] = context.settings
        self.budget = _number(settings, "max_restarts")
        self.budgets: Mapping[str, float] = settings.get("max_restarts_by_cause") or {}
        if not isinstance(self.budgets, Mapping):
            raise UsageError(f"max_restarts_by_cause is {self.budgets!r}, which is not a mapping")
        self.ends_with_lost_node = ends_with_lost_node(
            self.budget,
            self.budgets,
            _number(settings, "min_nodes"),
            _number(settings, "max_nodes"),
        )
        self.window = self._read("restart_window", Window, read_window)
        self._delay = self._read("restart_delay", Delay, read_delay) or _NO_DELAY
        loop = self._read("crash_loop", CrashLoop, read_crash_loop)
        self.crash_loop = loop or (_DEFAULT_LOOP if self.budget > _SMALL_BUDGET else _NO_LOOP)
        self.only = self._read("restart_on", Conditions, read_conditions)
        self.never = self._read("no_restart_on", Conditions, read_conditions) or Conditions()
        self.exclude_after = self._read("exclude_node_after", int, read_failure_count)
        # From the run id, so that all nodes have the same jitter.
        seed = zlib.crc32(context.run_id.encode("utf-8", "surrogateescape"))
        self._jitter = seed / 2**32
        self._check()

    def delay_after(self, used: int) -> float:
        """The delay before the next restart, in seconds, after `used` restarts."""
        return self._delay.seconds(used, self._jitter)

    def reject_others(self, policy: str, *known: str) -> None:
        """Reject options that a policy does not use.

        Raises:
            UsageError: an option that is not among `known` is given.
        """
        for dest, value in self._options.items():
            if value is not None and dest not in known:
                raise UsageError(
                    f"--{dest.replace('_', '-')} is for the restart policy 'standard', and the "
                    f"policy is {policy!r} (--restart-policy); leave out one of them"
                )

    def _read(self, dest: str, kind: type[T], read: Callable[[str], T]) -> T | None:
        """The value of an option; parses text that was given in code."""
        value = self._options.get(dest)
        if value is None or (type(value) is kind and kind is not int):
            return value
        try:
            return read(str(value))
        except ValueError as error:
            raise UsageError(f"--{dest.replace('_', '-')}: {error}") from None

    def _check(self) -> None:
        longest = self._delay.most
        if self.window is not None and self.window < longest:
            raise UsageError(
                f"--restart-window={format_duration(self.window)} is shorter than the longest "
                f"delay, {format_duration(longest)} (--restart-delay): no restart would ever count "
                "beside another"
            )
        for wanted in self.only or ():
            for unwanted in self.never:
                if unwanted.covers(wanted):
                    raise UsageError(
                        f"{wanted} is in --restart-on, and {unwanted} in --no-restart-on; keep one"
                    )


def _number(settings: Mapping[str, Any], name: str) -> int:
    value = settings.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        what = "restarts" if name == "max_restarts" else "nodes"
        raise UsageError(f"{name} is {value!r}, which is not a number of {what}")
    return value
