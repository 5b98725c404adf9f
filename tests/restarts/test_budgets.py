"""Numbers of restarts, in all and by cause."""

from __future__ import annotations

import math

import pytest
from plaunch import LaunchConfig
from plaunch.cli.options import max_restarts
from plaunch.errors import UsageError
from plaunch.restarts import format_budgets, parse_budgets


@pytest.mark.parametrize(
    ("text", "total", "by_cause"),
    [
        ("3", 3, {}),
        ("3,hang:1,oom:0", 3, {"hang": 1, "oom": 0}),
        ("0,node:inf", 0, {"node": math.inf}),
        ("0,node:2,worker:4,health:1", 0, {"node": 2, "worker": 4, "health": 1}),
    ],
)
def test_what_is_read(text, total, by_cause) -> None:
    assert parse_budgets(text) == (total, by_cause)
    assert parse_budgets(format_budgets(total, by_cause)) == (total, by_cause)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hang:1", "'hang:1' is not a number of restarts, such as 3, with others"),
        ("3,hang", "'hang' in '3,hang' is not CAUSE:NUMBER"),
        ("3,hang:-1", "is not CAUSE:NUMBER"),
        ("3,hang:1,hang:2", "two numbers for cause 'hang'"),
        ("3,hnag:1", "'hnag' is not a cause of failures; did you mean 'hang'"),
        ("3,:1", "'' is not a cause of failures"),
        ("3,", "is not CAUSE:NUMBER"),
        ("0,node:-inf", "is not CAUSE:NUMBER or CAUSE:inf"),
        ("0,node:nan", "is not CAUSE:NUMBER or CAUSE:inf"),
    ],
)
def test_what_is_refused(text, message) -> None:
    with pytest.raises(ValueError, match=message):
        max_restarts(text)


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ({"hang": -1}, "is -1 for 'hang', which is not a number"),
        ({"hang": True}, "is True"),
        ({"hang": "1"}, "is '1'"),
        ({"hang": math.nan}, "is nan"),
        ({"hang": 1.0}, "is 1.0"),
        ({"hagn": 1}, "'hagn' is not a cause of failures; did you mean 'hang'"),
    ],
)
def test_settings_in_code_are_checked(budgets, message) -> None:
    with pytest.raises(UsageError, match=message):
        LaunchConfig(1, 1, 1, max_restarts_by_cause=budgets)
