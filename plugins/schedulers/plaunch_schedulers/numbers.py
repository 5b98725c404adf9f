"""Integers in environment variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from plaunch.errors import UsageError
from plaunch.numbers import digits

if TYPE_CHECKING:
    from collections.abc import Mapping


class Number(NamedTuple):
    """A number, and the variable that it was read from."""

    value: int
    variable: str


def find_number(environ: Mapping[str, str], *variables: str, at_least: int = 0) -> Number | None:
    """Return the number in the first of `variables` that is set; None if none is.

    Raises:
        UsageError: its value is not an integer, or is below `at_least`.
    """
    for variable in variables:
        text = environ.get(variable)
        if not text:
            continue
        number = digits(text)
        if number is None or number < at_least:
            raise UsageError(
                f"variable {variable} is {text!r}, which is not a whole number from {at_least} "
                "up; the scheduler sets it, so something else has changed it (--scheduler=none "
                "ignores it)"
            )
        return Number(number, variable)
    return None
