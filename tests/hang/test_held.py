"""Since when workers are held, and which of them are told, with a clock of the test."""

from __future__ import annotations

from plaunch.agent import Held
from plaunch_hang.held import HeldWatch

PIDS = {0: 100, 1: 101}
STOPPED, TRACED = "suspended (SIGSTOP)", "traced by gdb (pid 9)"


def make():
    times = iter(range(5000, 6000))
    return HeldWatch(lambda: next(times))


def test_a_hold_keeps_its_beginning():
    watch = make()
    assert watch.look(1.0, PIDS, {}) == {}
    assert watch.look(2.0, PIDS, {1: STOPPED}) == {1: Held(STOPPED, 5000)}
    assert watch.look(3.0, PIDS, {1: STOPPED}) == {1: Held(STOPPED, 5000)}
    assert watch.look(4.0, PIDS, {1: TRACED}) == {1: Held(TRACED, 5001)}
    assert watch.look(5.0, {0: 100, 1: 102}, {1: TRACED}) == {1: Held(TRACED, 5002)}


def test_it_is_late_once_after_the_time_out_of_its_rank():
    watch, timeouts = make(), {0: 10.0, 1: 20.0}
    both = {0: STOPPED, 1: STOPPED}
    watch.look(0.0, PIDS, both)
    assert watch.take_late(9.0, timeouts) == {}
    assert [*watch.take_late(10.0, timeouts)] == [0]
    assert [*watch.take_late(25.0, timeouts)] == [1]
    assert watch.take_late(99.0, timeouts) == {}
    watch.look(100.0, PIDS, {})
    watch.look(101.0, PIDS, both)
    assert watch.take_late(105.0, timeouts) == {}
    assert [*watch.take_late(111.0, timeouts)] == [0]


def test_since_when_is_said():
    assert str(Held(STOPPED)) == STOPPED
    assert str(Held(STOPPED, 0.0)).startswith(f"{STOPPED} since ")
