"""The order of what a stop does, when its sweep ends, and streams that fail or hang in it."""

import contextlib
import logging
import math
import threading
import time

import pytest
from plaunch.process.proc import Process
from plaunch.process.stopping.stop import Stop, Sweep
from plaunch.process.streams import LastOutput

from helpers.clock import Clock
from helpers.faults import raising
from helpers.waiting import BOUND


@pytest.mark.parametrize("inherits", [True, False])
def test_workers_are_signalled_before_the_process_table_is_read(inherits):
    done = []

    class Sequence:
        def step(self, live):
            done.append("signal")
            return 1.0

    class Job:
        def inherits_orphans(self):
            return inherits

        def scan(self):
            done.append("scan")

        def finish_kill(self):
            pass

        def refresh(self):
            pass

    class Poller:
        def fileno(self):
            return 0

    stop = Stop(
        sequence=Sequence(),
        job=Job(),
        poller=Poller(),
        output=None,
        find_live=lambda: [0],
        release=lambda stuck, orphans: None,
        lock=contextlib.nullcontext(),
    )
    assert stop.step() == 1.0
    assert stop.step() == 1.0
    # A launcher that does not inherit orphans has scanned before the stop, while parents live.
    assert done == (["signal", "scan", "signal"] if inherits else ["signal", "signal"])


# --- streams of a plugin --------------------------------------------------------------------------


class Poller:
    """Is woken when the output is through."""

    def __init__(self):
        self.woken = threading.Event()

    def wake(self):
        self.woken.set()

    def wait(self, seconds):
        self.woken.wait(min(seconds, 0.02))


class OddStreams:
    """Streams that do what a test wants."""

    def __init__(self, finish=lambda: None, last_shown=lambda: -math.inf, **others):
        self.finish, self.last_shown = finish, last_shown
        self.__dict__.update(others)

    def is_reading(self):
        return True

    def escalate(self):
        raise KeyError("x")


WHO = f"{__name__}.OddStreams"


@pytest.fixture
def stopped(caplog):
    """Runs a stop with streams; returns whether it released everything, and what it logged."""
    caplog.set_level(logging.WARNING, "plaunch")

    def run(streams, *, is_escalated=False, **timeouts):
        released = []
        poller = Poller()
        output = LastOutput(streams, poller.wake, shows_rest=False, **timeouts)
        stop = Stop(
            sequence=None,
            job=None,
            poller=poller,
            output=output,
            find_live=list,
            release=lambda stuck, orphans: released.append(stuck),
            lock=contextlib.nullcontext(),
        )
        if is_escalated:
            stop.escalate()
        stop.run()
        assert output.is_begun
        return released == [{}], [record.getMessage() for record in caplog.records]

    return run


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit("no")])
def test_streams_that_fail_do_not_change_the_result(stopped, error):
    said = f"{WHO} failed in finish: {type(error).__name__}: no; workers' output may be missing"
    assert stopped(OddStreams(raising(error)), is_escalated=True) == (True, [said])


@pytest.mark.parametrize("is_escalated", [False, True])
def test_streams_finish_for_as_long_as_they_show_something(stopped, is_escalated):
    """The time between two lines is shorter once the stop has been escalated."""
    timeout, escalated_timeout = (BOUND, 0.2) if is_escalated else (0.2, BOUND)
    never, begun = threading.Event(), time.monotonic()
    streams = OddStreams(lambda: never.wait(BOUND), lambda: min(time.monotonic(), begun + 0.5))
    said = f"{WHO} has not returned from finish; workers' output may be missing"
    assert stopped(
        streams, is_escalated=is_escalated, timeout=timeout, escalated_timeout=escalated_timeout
    ) == (True, [said])
    never.set()
    assert 0.6 < time.monotonic() - begun < BOUND


# --- the sweep ------------------------------------------------------------------------------------


class Left:
    """A job of which the same processes are left after every pass."""

    def __init__(self, *pids, reaps=lambda: False, refused=(), is_sure=True):
        self.processes = [Process(pid) for pid in pids]
        self.reap_orphans = reaps
        self.refused = refused
        self.sure = is_sure

    def kill_orphans(self, given_up):
        found = [process for process in self.processes if process.pid not in given_up]
        return found, [process for process in found if process.pid in self.refused]

    def is_sure(self):
        return self.sure


def climb(job, *, clock, given_up=()):
    """Take passes until there are no more; the processes that are left."""
    began = clock.now
    sweep = Sweep(job, given_up, 10.0, clock=clock)
    while (delay := sweep.step()) is not None:
        clock.now += delay
        assert clock.now - began < 20, "the sweep does not end"
    return [process.pid for process in sweep.left]


@pytest.fixture
def clock():
    return Clock(0.0)


def test_processes_that_survive_sigkill_are_given_up(clock):
    assert climb(Left(5), clock=clock) == [5]
    assert clock.now == pytest.approx(10, abs=0.02)


def test_processes_that_keep_ending_do_not_hold_a_sweep(clock):
    """What was given up forks, and its children end and are reaped in every pass."""
    assert climb(Left(5, reaps=lambda: True), given_up={5}, clock=clock) == []
    assert clock.now == pytest.approx(10, abs=0.02)


def test_processes_that_cannot_be_classified_do_not_hold_a_sweep(clock):
    assert climb(Left(is_sure=False), clock=clock) == []
    assert clock.now == pytest.approx(10, abs=0.02)


def test_a_sweep_repeats_while_it_reaps_processes(clock):
    reaps = iter([True, True, False])
    assert climb(Left(reaps=lambda: next(reaps)), clock=clock) == []
    assert next(reaps, None) is None


def test_processes_that_refuse_signals_are_not_waited_for(clock):
    assert climb(Left(5, refused={5}), clock=clock) == [5]
    assert clock.now == 0
