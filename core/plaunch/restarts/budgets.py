"""How many restarts there are, also for causes that have a number of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch._names import suggest
from plaunch.errors import UsageError
from plaunch.numbers import digits, quote
from plaunch.restarts.api import Cause

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORM = "a number of restarts, such as 3, with others for causes behind it, as in 3,hang:1,oom:0"


def parse_budgets(text: str) -> tuple[int, dict[str, int]]:
    """Read `3,hang:1,oom:0`: the number of restarts, and those of causes with one of their own.

    Raises:
        ValueError: the text has another form, names no cause, or names one twice.
    """
    first, *others = text.split(",")
    total = digits(first)
    if total is None:
        raise ValueError(f"{quote(text)} is not {_FORM}")
    found: dict[str, int] = {}
    for item in others:
        cause, _, count = item.partition(":")
        number = digits(count)
        if number is None:
            raise ValueError(f"{quote(item)} in {quote(text)} is not CAUSE:NUMBER; write {_FORM}")
        if cause in found:
            raise ValueError(f"{quote(text)} has two numbers for cause {cause!r}")
        found[cause] = number
    _check_causes(found)
    return total, found


def check_budgets(budgets: Mapping[str, object]) -> None:
    """See whether these are numbers of restarts by cause.

    Raises:
        UsageError: one of them is not.
    """
    name = "max_restarts_by_cause (--max-restarts)"
    try:
        _check_causes(budgets)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
    for cause, number in budgets.items():
        if not (type(number) is int and number >= 0):
            raise UsageError(f"{name} is {number!r} for {cause!r}, which is no number of restarts")


def format_budgets(total: int, budgets: Mapping[str, int]) -> str:
    """The two as they are written: `3,hang:1,oom:0`."""
    return ",".join([str(total), *(f"{cause}:{budgets[cause]}" for cause in sorted(budgets))])


def _check_causes(budgets: Mapping[str, object]) -> None:
    known = [cause.value for cause in Cause]
    for cause in budgets:
        if cause not in known:
            raise ValueError(f"{cause!r} is no cause of failures{suggest(str(cause), known)}")
