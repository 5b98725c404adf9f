"""What is learned from heartbeats."""

from __future__ import annotations

import math

import pytest
from plaunch_hang.beats import Beat
from plaunch_hang.options import hang_timeout
from plaunch_hang.timeouts import LEAST, UNLEARNED, Timeouts

LEARNED = Beat(number=10, longest=30.0)


def test_a_given_one_stays():
    timeouts = Timeouts(60.0)
    assert [timeouts.of(beat) for beat in (Beat(), LEARNED)] == [60.0, 60.0]


@pytest.mark.parametrize(("section", "expected"), [(10.0, 60.0), (90.0, 90.0), (-0.001, math.inf)])
def test_a_section_makes_it_longer(section, expected):
    assert Timeouts(60.0).of(Beat(number=1, section=section)) == expected


def test_the_longest_gap_times_five_is_learned():
    timeouts = Timeouts(None)
    assert timeouts.of(Beat(number=9, longest=30.0)) == UNLEARNED  # too early
    assert timeouts.of(LEARNED) == 150.0
    assert timeouts.of(Beat(number=99, longest=0.001)) == 150.0  # another worker's counts
    assert timeouts.of(Beat()) == UNLEARNED  # one that has not beaten yet
    assert timeouts.of(Beat(number=1)) == 150.0  # after a restart


def test_what_is_learned_is_never_very_short():
    assert Timeouts(None).of(Beat(number=10, longest=0.001)) == LEAST


@pytest.mark.parametrize(
    ("text", "expected"), [("10m", 600.0), ("1", 1.0), ("1h30m", 5400.0), ("auto", "auto")]
)
def test_how_it_is_written(text, expected):
    assert hang_timeout(text) == expected


@pytest.mark.parametrize("text", ["", "0", "0.5", "-1", "inf", "soon", "AUTO"])
def test_how_it_is_not_written(text):
    with pytest.raises(ValueError, match=r"; or auto$"):
        hang_timeout(text)
