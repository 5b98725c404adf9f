"""The clock of processes that may be suspended."""

from __future__ import annotations

import pytest
from plaunch_membership.awake import AwakeClock

from helpers.calls import at_once
from helpers.clock import Clock


@pytest.mark.parametrize(
    ("steps", "counted"),
    [
        ([1.0, 1.0, 0.5], 2.5),
        ([3.0], 3.0),
        ([65.0], 3.0),
        ([1.0, 86400.0, 1.0], 5.0),
        ([4.0, 4.0], 6.0),
        ([0.0, 0.0], 0.0),
    ],
)
def test_a_suspension_counts_at_most_the_maximum(steps, counted):
    real = Clock(1e6)
    clock = AwakeClock(3.0, real)
    began = clock()
    for step in steps:
        real.now += step
        now = clock()
    assert now - began == pytest.approx(counted)


def test_concurrent_readers_count_no_time_twice():
    real = Clock()
    clock = AwakeClock(3.0, real)
    began = clock()
    real.now += 2.0
    at_once(*[lambda: [clock() for _ in range(500)]] * 4)
    assert clock() - began == pytest.approx(2.0)
