"""Workers in uninterruptible sleep, which nobody can make on purpose: states are made up."""

from __future__ import annotations

import os

import pytest
from plaunch.process.kernel.uninterruptible import (
    TIMEOUT_VARIABLE,
    UninterruptibleWatch,
    uninterruptible_timeout_of,
)


class World:
    def __init__(self, timeout):
        self.now = 1000.0
        self.states = {}
        self.looks = 0
        self.watch = UninterruptibleWatch(
            timeout, find_state=self.find_state, clock=lambda: self.now
        )

    def find_state(self, pid):
        self.looks += 1
        return self.states.get(pid, "")

    def find(self, **ranks):
        return self.watch.find_stuck({int(name[1:]): pid for name, pid in ranks.items()})


def test_a_worker_that_sleeps_too_long_is_stuck():
    world = World(10)
    world.states = {71: "D", 72: "S"}
    found = {}
    while not found:
        found = world.find(r0=71, r3=72)
        world.now += 0.5
        assert world.now < 1020
    assert found == {0: pytest.approx(10, abs=1)}


@pytest.mark.parametrize("is_replaced", [False, True])
def test_sleep_that_is_interrupted_or_is_anothers_begins_anew(is_replaced):
    world = World(4)
    for second in range(60):
        is_other = is_replaced and second % 4 >= 2
        is_awake = not is_replaced and second % 3 == 0
        world.states = {71: "S" if is_awake else "D", 72: "D"}
        assert world.find(r0=72 if is_other else 71) == {}
        world.now += 1


def test_several_may_be_stuck():
    world = World(2)
    world.states = {71: "D", 72: "D", 73: "R"}
    world.find(r0=71, r1=72, r2=73)
    world.now += 2
    assert world.find(r0=71, r1=72, r2=73) == {0: 2.0, 1: 2.0}


@pytest.mark.parametrize(("timeout", "looks"), [(60, 10), (4, 10), (2, 20), (0.4, 100)])
def test_it_looks_no_more_often_than_it_must(timeout, looks):
    world = World(timeout)
    for _ in range(100):
        world.find(r0=71)
        world.now += 0.1
    assert world.looks == pytest.approx(looks, abs=1)


def test_without_a_process_table_nobody_is_stuck():
    world = World(1)
    for _ in range(10):
        assert world.find(r0=71) == {}
        world.now += 1


def test_the_real_table_is_asked():
    """This process runs, whatever else."""
    watch = UninterruptibleWatch(0.000001)
    assert watch.find_stuck({0: os.getpid()}) == {}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2.5", 2.5), ("0", 0), ("-3", 0), ("", 0), ("inf", 0), (None, 0)],
)
def test_what_is_no_positive_number_means_never(text, seconds):
    environ = {} if text is None else {TIMEOUT_VARIABLE: text}
    assert uninterruptible_timeout_of(environ) == seconds
