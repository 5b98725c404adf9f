"""The settings of the restart policies of one launch, checked against each other."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from plaunch.durations import format_duration
from plaunch.errors import UsageError

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

_AT_ONCE = Delay(0.0, 0.0, 0.0)
_OFF = CrashLoop(0, 0.0)
_LOOP = CrashLoop(3, 30.0)
# Up to here a budget ends a loop as soon, or almost, and restarts are torchrun's in number.
_SMALL_BUDGET = 3


class Settings:
    """What the options of one launch say.

    Attributes:
        budget: how many restarts there are.
        budgets: how many there are after failures of a cause that has a number of its own.
        window: how long a restart counts, in seconds, or None for ever.
        crash_loop: when the same failure has come back too often.
        only: what alone is followed by a restart, or None.
        never: what is never followed by one.
        exclude_after: after how many failures on a node the job goes on without it, or None.

    Raises:
        UsageError: an option has no value that it can have, or two contradict each other.
    """

    def __init__(self, context: PluginContext) -> None:
        self._options = context.options
        settings: Mapping[str, Any] = context.settings
        self.budget = _number(settings, "max_restarts")
        self.budgets: Mapping[str, int] = settings.get("max_restarts_by_cause") or {}
        if not isinstance(self.budgets, Mapping):
            raise UsageError(f"max_restarts_by_cause is {self.budgets!r}, which is no mapping")
        self.window = self._read("restart_window", Window, read_window)
        self._delay = self._read("restart_delay", Delay, read_delay) or _AT_ONCE
        loop = self._read("crash_loop", CrashLoop, read_crash_loop)
        self.crash_loop = loop or (_LOOP if self.budget > _SMALL_BUDGET else _OFF)
        self.only = self._read("restart_on", Conditions, read_conditions)
        self.never = self._read("no_restart_on", Conditions, read_conditions) or Conditions()
        self.exclude_after = self._read("exclude_node_after", int, read_failure_count)
        # All nodes know the run id.
        seed = zlib.crc32(context.run_id.encode("utf-8", "surrogateescape"))
        self._spread = seed / 2**32
        self._check()

    def delay_after(self, used: int) -> float:
        """The seconds before a restart, after so many others."""
        return self._delay.seconds(used, self._spread)

    def refuse_others(self, policy: str, *known: str) -> None:
        """Refuse options that a policy has no use for.

        Raises:
            UsageError: one is given that is not among `known`.
        """
        for dest, value in self._options.items():
            if value is not None and dest not in known:
                raise UsageError(
                    f"--{dest.replace('_', '-')} is for the restart policy 'standard', and the "
                    f"policy is {policy!r} (--restart-policy); leave out one of them"
                )

    def _read(self, dest: str, kind: type[T], read: Callable[[str], T]) -> T | None:
        """The value of an option; one that was given in code need not have been read."""
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
        raise UsageError(f"{name} is {value!r}, which is no number of restarts")
    return value
