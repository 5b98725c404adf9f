"""When the agent's loop counts as alive."""

from __future__ import annotations

import math

import pytest
from plaunch.agent.poller import LoopWatchdog

from helpers.clock import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def alive(clock):
    return LoopWatchdog(10.0, clock=clock, wall_clock=lambda: clock.now + 5000)


def after(alive, clock, seconds):
    clock.now += seconds
    return alive.overdue()


def test_a_loop_that_has_not_begun_is_never_overdue(alive, clock):
    assert after(alive, clock, 1e6) == 0


def test_a_loop_that_waits_for_news_may_wait_for_ever(alive, clock):
    alive.before_poll(None)
    assert after(alive, clock, 1e6) == 0


@pytest.mark.parametrize(
    ("seconds", "is_alive"), [(0.0, True), (69.9, True), (70.1, False), (1e6, False)]
)
def test_a_loop_that_sleeps_is_alive_until_its_time_is_over(alive, clock, seconds, is_alive):
    alive.before_poll(60.0)
    assert after(alive, clock, seconds) == (0 if is_alive else pytest.approx(seconds))


def test_a_loop_that_works_has_its_bound(alive, clock):
    alive.before_poll(None)
    clock.now += 1000
    alive.after_poll()
    assert after(alive, clock, 9.9) == 0
    assert after(alive, clock, 0.2) == pytest.approx(10.1)
    alive.before_poll(1.0)
    assert after(alive, clock, 0.0) == 0


def test_a_loop_that_has_ended_is_not_missed(alive, clock):
    alive.after_poll()
    alive.stop()
    assert after(alive, clock, 1e6) == 0
    alive.touch()
    assert after(alive, clock, 1e6) == 0


def test_a_loop_that_waits_for_plugins_is_overdue_after_its_last_sign(alive, clock):
    alive.after_poll()
    for _ in range(100):
        assert after(alive, clock, 9.0) == 0
        alive.touch()
    assert after(alive, clock, 10.1) == pytest.approx(10.1)


def test_progress_elsewhere_is_a_sign_of_life_for_as_long_as_the_bound(clock):
    progress = -math.inf
    alive = LoopWatchdog(10.0, progress=lambda: progress, clock=clock)
    alive.after_poll()
    assert after(alive, clock, 100) == 100
    progress = clock.now - 9
    assert after(alive, clock, 0.5) == 0
    assert after(alive, clock, 1) == pytest.approx(101.5)


def test_the_time_of_the_last_progress(alive, clock):
    alive.after_poll()
    assert after(alive, clock, 9) == 0
    assert alive.last_progress() == 5109.0  # now: it is at work
    clock.now += 20
    assert alive.last_progress() == 5100.0


def test_a_loop_in_the_code_of_a_plugin_has_a_shorter_bound(alive, clock):
    alive.after_poll()
    with alive.calling(5.0):
        assert after(alive, clock, 4.9) == 0
        assert after(alive, clock, 0.2) == pytest.approx(5.1)
        assert alive.patience() == 5.0
    assert after(alive, clock, 9.9) == 0
    assert alive.patience() == 10.0
