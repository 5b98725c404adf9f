"""Parsing and formatting numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from plaunch.numbers import format_ranks, parse_ranks


@given(some.frozensets(some.integers(0, 5000), min_size=1))
def test_valid_ranks(ranks):
    assert parse_ranks(format_ranks(ranks)) == ranks


@pytest.mark.parametrize(
    "text", ["", "a", "-1", "3-1", "1,,2", "1-", "99999999", "0-9999999", "²", None]
)
def test_invalid_ranks(text):
    with pytest.raises(ValueError, match="is not a list of ranks"):
        parse_ranks(text)
