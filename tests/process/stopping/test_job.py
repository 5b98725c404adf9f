"""When a sweep ends, on trees that are made up."""

from __future__ import annotations

import pytest
from plaunch.process.processes import Process
from plaunch.process.stopping.job import Sweep
from plaunch.process.stopping.tree import GroupTree

from helpers.clock import Clock


class Left(GroupTree):
    """A tree in which the same processes are left at every look, whatever they get."""

    def __init__(self, *pids, refused=(), is_sure=True):
        self.processes = [Process(pid) for pid in pids]
        self.refused = refused
        self.sure = is_sure

    def orphans(self):
        return {0: self.processes}

    def signal(self, processes, signum):
        return [process for process in processes if process.pid in self.refused]

    def is_sure(self):
        return self.sure


def climb(tree, *, reaps, clock, given_up=()):
    """Take passes until there are no more; the processes that are left."""
    began = clock.now
    sweep = Sweep(tree, reaps, given_up, 10.0, clock=clock)
    while (delay := sweep.step()) is not None:
        clock.now += delay
        assert clock.now - began < 20, "the sweep does not end"
    return [process.pid for process in sweep.left]


@pytest.fixture
def clock():
    return Clock(0.0)


def test_who_outlives_sigkill_is_given_up_in_the_end(clock):
    assert climb(Left(5), reaps=lambda: False, clock=clock) == [5]
    assert clock.now == pytest.approx(10, abs=0.02)


def test_whoever_ends_all_the_time_does_not_hold_it(clock):
    """What was given up forks, and its children end and are reaped in every pass."""
    assert climb(Left(5), reaps=lambda: True, given_up={5}, clock=clock) == []
    assert clock.now == pytest.approx(10, abs=0.02)


def test_nor_does_whoever_is_never_clear(clock):
    assert climb(Left(is_sure=False), reaps=lambda: False, clock=clock) == []
    assert clock.now == pytest.approx(10, abs=0.02)


def test_it_goes_on_while_it_has_reaped_somebody(clock):
    reaps = iter([True, True, False])
    assert climb(Left(), reaps=lambda: next(reaps), clock=clock) == []
    assert next(reaps, None) is None


def test_who_may_not_be_signalled_is_not_waited_for(clock):
    assert climb(Left(5, refused={5}), reaps=lambda: False, clock=clock) == [5]
    assert clock.now == 0
