"""Timeouts, given or learned from heartbeats."""

from __future__ import annotations

import math

import pytest
from plaunch_hang.heartbeats import LEAST, UNLEARNED, HangTimeouts, HeartbeatState
from plaunch_hang.options import hang_timeout

LEARNED = HeartbeatState(number=10, longest=30.0)


def test_a_given_timeout_is_fixed():
    timeouts = HangTimeouts(60.0)
    assert [timeouts.of(beat) for beat in (HeartbeatState(), LEARNED)] == [60.0, 60.0]


@pytest.mark.parametrize(("section", "expected"), [(10.0, 60.0), (90.0, 90.0), (-0.001, math.inf)])
def test_a_section_extends_the_timeout(section, expected):
    assert HangTimeouts(60.0).of(HeartbeatState(number=1, section=section)) == expected


def test_the_longest_gap_times_five_is_learned():
    timeouts = HangTimeouts(None)
    assert timeouts.of(HeartbeatState(number=9, longest=30.0)) == UNLEARNED  # too early
    assert timeouts.of(LEARNED) == 150.0
    assert timeouts.of(HeartbeatState(number=99, longest=0.001)) == 150.0  # another worker's counts
    assert timeouts.of(HeartbeatState()) == UNLEARNED  # one that has not beaten yet
    assert timeouts.of(HeartbeatState(number=1)) == 150.0  # after a restart


def test_a_learned_timeout_has_a_minimum():
    assert HangTimeouts(None).of(HeartbeatState(number=10, longest=0.001)) == LEAST


@pytest.mark.parametrize(
    ("text", "expected"), [("10m", 600.0), ("1", 1.0), ("1h30m", 5400.0), ("auto", "auto")]
)
def test_valid_options(text, expected):
    assert hang_timeout(text) == expected


@pytest.mark.parametrize("text", ["", "0", "0.5", "-1", "inf", "soon", "AUTO"])
def test_invalid_options(text):
    with pytest.raises(ValueError, match=r"; or auto$"):
        hang_timeout(text)
