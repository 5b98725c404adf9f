"""Durations in seconds: parses and checks them, and converts them for system calls.

Code that takes a duration from a user parses or checks it here. Code that passes one to the system
uses `milliseconds`, `waitable` or `bounded`: no system call accepts every float. poll counts
milliseconds in 31 bits, and no call accepts infinity.
"""

from __future__ import annotations

import math

from plaunch.errors import UsageError
from plaunch.numbers import quote
from plaunch.values import Value, plain_dataclass

# Defaults of torchrun, in seconds; `LaunchConfig` explains them.
SHUTDOWN_TIMEOUT = 30.0
EXIT_BARRIER_TIMEOUT = 300.0

LONGEST = 1e9  # seconds, some 31 years: a limit of threads, locks, dates and torch
_LONGEST_WAIT = 1e6  # seconds of one call
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}  # seconds


@plain_dataclass
class Duration(Value):
    """The valid values of a duration, which is never negative or NaN.

    Args:
        may_be_zero: whether 0 is valid.
        may_be_endless: whether `inf` is valid.
        least: the minimum in seconds.
        most: the maximum in seconds, other than `inf`.
        has_units: whether texts may have units, as in 2m30s.
    """

    may_be_zero: bool = False
    may_be_endless: bool = False
    least: float = 0.0
    most: float = LONGEST
    has_units: bool = False

    @property
    def rule(self) -> str:
        """The valid values, as the end of a sentence."""
        first = f"from {self.least:g}" if self.may_be_zero or self.least else "above 0"
        endless = ", or inf for no end" if self.may_be_endless else ""
        number = f"a number of seconds {first} up to {_plain(self.most)}{endless}"
        return f"a duration such as 90s, 2m30s or 1h, or {number}" if self.has_units else number

    def parse(self, text: str) -> float:
        """Parse a text, and return the seconds.

        Raises:
            ValueError: it is invalid; the message quotes it and states the rule.
        """
        seconds = _in_units(text) if self.has_units else _number(text)
        # Many digits also parse as infinity, but mean a number.
        is_meant = not math.isinf(seconds) or "inf" in text.lower()
        if not (is_meant and self._allows(seconds)):
            raise ValueError(f"{quote(text)} is not {self.rule}")
        return seconds

    def read(self, text: str, name: str) -> float:
        """Parse a text of the user, and return the seconds.

        Args:
            text: the text.
            name: its source, as the beginning of a sentence: `variable X`, `option 'x' of ...`.

        Raises:
            UsageError: it is invalid.
        """
        try:
            return self.parse(text)
        except ValueError:
            raise self._wrong(text, name) from None

    def check(self, value: object, name: str) -> None:
        """Check a duration that is given in code.

        Raises:
            UsageError: it is invalid; the message begins with `name`.
        """
        if isinstance(value, (str, bytes, bool)) or not self._allows(_number(value)):
            raise self._wrong(value, name)

    def _allows(self, seconds: float) -> bool:
        if seconds == math.inf:
            return self.may_be_endless
        if seconds == 0:
            return self.may_be_zero
        return seconds > 0 and self.least <= seconds <= self.most

    def _wrong(self, value: object, name: str) -> UsageError:
        return UsageError(f"{name} is {quote(value)}, which is not {self.rule}")


PERIOD = Duration()  # an interval
LIMIT = Duration(may_be_endless=True)  # a deadline
PATIENCE = Duration(may_be_zero=True, may_be_endless=True)  # a wait; 0 does not wait


def milliseconds(seconds: float | None) -> int | None:
    """Convert a timeout for `poll`, rounded up; None waits without a limit.

    A very long wait returns early, after days; the caller checks the clock again.
    """
    return None if seconds is None else math.ceil(max(min(seconds, _LONGEST_WAIT), 0.0) * 1000)


def waitable(seconds: float | None) -> float | None:
    """Convert a timeout for a selector or a socket, as `milliseconds` does, in seconds."""
    return None if seconds is None else max(min(seconds, _LONGEST_WAIT), 0.0)


def bounded(seconds: float) -> float:
    """Replace infinity by `LONGEST`, for records, dates and other programs."""
    return min(seconds, LONGEST)


def describe_end(seconds: float) -> str:
    """Return `in 12 s`, or `never`."""
    return "never" if math.isinf(seconds) else f"in {seconds:.0f} s"


def format_duration(seconds: float, gap: str = "") -> str:
    """Format a duration with units: `2m30s`, or `2 m 30 s` with a blank as `gap`."""
    parts = []
    for unit, size in _UNITS.items():
        count = seconds if unit == "s" else seconds // size
        seconds -= count * size
        if count:
            parts.append(f"{count:.12g}{gap}{unit}")
    return gap.join(parts) or f"0{gap}s"


def _plain(number: float) -> str:
    return f"{number:.0f}" if number == round(number) else f"{number:g}"


def _in_units(text: str) -> float:
    """Parse `1h`, `2m30s` or a plain number; NaN if the text is invalid."""
    if text[-1:] not in _UNITS:
        return _number(text)
    seconds, last, number = 0.0, math.inf, ""
    for character in text:
        unit = _UNITS.get(character)
        if unit is None:
            number += character
            continue
        # float() reads more than digits: signs, exponents, words.
        if unit >= last or not (number.isascii() and number.replace(".", "", 1).isdecimal()):
            return math.nan
        seconds, last, number = seconds + float(number) * unit, unit, ""
    return seconds


def _number(value: object) -> float:
    """Convert a value to a float; NaN if that fails."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan
