"""The values of the options: meaning, parsing, formatting."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NamedTuple

from plaunch.durations import Duration, format_duration
from plaunch.numbers import digits, quote
from plaunch.plugin import did_you_mean
from plaunch.restarts import Cause

if TYPE_CHECKING:
    from plaunch.restarts import Failure

_POSITIVE_DURATION = Duration(has_units=True)
_DURATION = Duration(may_be_zero=True, has_units=True)
_MAX_CODE = 255
_MAX_DOUBLINGS = 64  # from a nanosecond to centuries
_CAUSES = tuple(cause.value for cause in Cause)
_WORKER, _OUT_OF_MEMORY = Cause.WORKER.value, Cause.OUT_OF_MEMORY.value
_BY_A_WORKER = (Cause.WORKER, Cause.OUT_OF_MEMORY)  # causes with a meaningful exit code


class Window(float):
    """How long a restart counts, in seconds."""

    __slots__ = ()

    def __str__(self) -> str:
        return format_duration(self)


class Delay(NamedTuple):
    """How long to wait before a restart, in seconds.

    Args:
        first: the delay before the first restart.
        least: the minimum before further restarts.
        most: the maximum.
    """

    first: float
    least: float
    most: float

    def __str__(self) -> str:
        least, most = format_duration(self.least), format_duration(self.most)
        return least if self.first or not self.most else f"{least}:{most}"

    def seconds(self, used: int, jitter: float) -> float:
        """The delay before the next restart, in seconds; doubles with each restart.

        The jitter is constant for a job: jobs that fail at the same time restart at different
        times, and no delay is shorter than the one before.

        Args:
            used: the number of restarts so far.
            jitter: the jitter of the job, from 0 to 1.
        """
        if used == 0 or self.first:
            return self.first
        doubled = self.least * 2.0 ** min(used - 1, _MAX_DOUBLINGS) * (1 + jitter)
        return min(doubled, self.most - (self.most - self.least) * jitter / 4)


class CrashLoop(NamedTuple):
    """The same failure `times` times in a row, each within `seconds` of the start; 0 times: off."""

    times: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.times}/{format_duration(self.seconds)}" if self.times else "off"


class Condition(NamedTuple):
    """A class of failures, such as `exit:64-78`: `low` and `high` are exit codes or signals."""

    kind: str
    name: str = ""
    low: int = 0
    high: int = 0

    def __str__(self) -> str:
        if self.kind == "cause":
            return self.name
        if self.kind == "exit":
            return f"exit:{self.low}" + (f"-{self.high}" if self.high > self.low else "")
        return f"{self.kind}:{self.name}"

    def matches(self, failure: Failure) -> bool:
        """Whether a failure meets this condition."""
        if self.kind == "cause":
            return failure.cause.value == self.name
        if failure.cause not in _BY_A_WORKER:
            return False
        if self.kind == "exception":
            return f".{failure.exception}".endswith(f".{self.name}")
        code = -failure.exitcode if self.kind == "signal" else failure.exitcode
        return self.low <= code <= self.high

    def covers(self, other: Condition) -> bool:
        """Whether all failures that meet the other condition also meet this one."""
        if self.kind == "exception" == other.kind:
            return f".{other.name}".endswith(f".{self.name}")
        sigkill = "signal:SIGKILL"  # also the end of a worker that is out of memory
        if self.name == _WORKER and other.kind != "cause":
            return str(other) != sigkill
        if other.name == _OUT_OF_MEMORY and str(self) == sigkill:
            return True
        if self.kind != other.kind or self.kind == "cause":
            return self == other
        return self.low <= other.low and other.high <= self.high


class Conditions(tuple[Condition, ...]):
    """Several conditions, of which a failure must meet one."""

    __slots__ = ()

    def __str__(self) -> str:
        return ",".join(map(str, self))

    def find(self, failure: Failure) -> Condition | None:
        """The first condition that a failure meets."""
        return next((condition for condition in self if condition.matches(failure)), None)


def read_window(text: str) -> Window:
    """Read `1h`.

    Raises:
        ValueError: it is not a duration above 0.
    """
    return Window(_POSITIVE_DURATION.parse(text))


def read_delay(text: str) -> Delay:
    """Read `5s`, a constant delay, or `1s:60s`, the minimum and maximum.

    Raises:
        ValueError: a part is not a duration, or the first one is longer than the second.
    """
    low, colon, high = text.partition(":")
    if not colon:
        seconds = _DURATION.parse(text)
        return Delay(seconds, seconds, seconds)
    least, most = _POSITIVE_DURATION.parse(low), _POSITIVE_DURATION.parse(high)
    if least > most:
        raise ValueError(f"{quote(text)} has a maximum below its minimum; write it as in 1s:60s")
    return Delay(0.0, least, most)


def read_conditions(text: str) -> Conditions:
    """Read `exit:2,exit:64-78,signal:SIGABRT,exception:ConfigError,oom`.

    Raises:
        ValueError: a part is not a condition.
    """
    return Conditions(_condition(item) for item in text.split(","))


def read_crash_loop(text: str) -> CrashLoop:
    """Read `3/30s`, or `off`.

    Raises:
        ValueError: it is neither, or the number is below 2.
    """
    if text == "off":
        return CrashLoop(0, 0.0)
    count, slash, seconds = text.partition("/")
    number = digits(count)
    if not slash or number is None or number < 2:
        raise ValueError(
            f"{quote(text)} is not a number of failures from 2 and a duration, such as 3/30s, "
            "nor off"
        )
    return CrashLoop(number, _POSITIVE_DURATION.parse(seconds))


def read_failure_count(text: str) -> int:
    """Read a number of failures.

    Raises:
        ValueError: it is not a whole number from 1.
    """
    number = digits(text)
    if not number:
        raise ValueError(
            f"{quote(text)} is not a number of failures from 1; omit the option to exclude no node"
        )
    return number


def _condition(item: str) -> Condition:
    kind, colon, value = item.partition(":")
    if not colon and kind in _CAUSES:
        return Condition("cause", kind)
    if kind == "exit":
        first, dash, last = value.partition("-")
        low = digits(first, _MAX_CODE)
        high = digits(last, _MAX_CODE) if dash else low
        if low and high and low <= high:
            return Condition(kind, low=low, high=high)
    elif kind == "signal" and (number := _signal(value)):
        return Condition(kind, number.name, number, number)
    elif kind == "exception" and value and all(part.isidentifier() for part in value.split(".")):
        return Condition(kind, value)
    raise ValueError(
        f"{quote(item)} is not exit:CODE or exit:A-B with codes from 1 to {_MAX_CODE}, "
        f"signal:NAME, exception:NAME, or a cause: {', '.join(_CAUSES)}"
        f"{'' if colon else did_you_mean(item, _CAUSES)}"
    )


def _signal(text: str) -> signal.Signals | None:
    number = digits(text)
    name = text.upper()
    try:
        if number is not None:
            return signal.Signals(number)
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except (KeyError, ValueError):
        return None
