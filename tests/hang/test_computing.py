"""Workers that compute, from made-up CPU times."""

from __future__ import annotations

import pytest
from plaunch_hang.process import ComputeWatch, ProcessorTime

SPAN = 5.0  # seconds


class Machine:
    """Two processes, 7 and 8; 7 uses the given CPU time per second."""

    def __init__(self, *, uses_gpu=False):
        self.now, self.times = 100.0, {7: ProcessorTime(), 8: ProcessorTime()}
        self.watch = ComputeWatch(self.read, lambda pid: uses_gpu, lambda: self.now)
        self.sample(0.0)

    def read(self, pids):
        return {pid: self.times[pid] for pid in pids}

    def sample(self, seconds=SPAN, threaded=(), **uses):
        self.now += seconds
        before = self.times[7]
        used = ProcessorTime(**{name: share * seconds for name, share in uses.items()})
        self.times[7] = ProcessorTime(*map(sum, zip(before, used, strict=True)))
        return self.watch.sample(dict.fromkeys(self.times, SPAN), threaded)


@pytest.mark.parametrize(
    ("uses", "computes"),
    [
        ({"user": 1.0}, True),
        ({"user": 0.95, "system": 0.05}, True),
        ({"user": 0.1}, True),  # other threads of Python have the lock
        ({"user": 0.04, "waited": 0.9}, True),  # a busy machine, or a limit of a container
        ({}, False),
        ({"user": 0.03}, False),  # sleeps for a millisecond at a time
        ({"user": 0.06, "system": 0.05}, False),  # sleeps for less
        ({"user": 0.75, "system": 0.23}, False),  # epoll_wait without a timeout
        ({"user": 0.38, "system": 0.58}, False),  # sched_yield
        ({"children": 1.0}, True),
        ({"children": 0.02}, False),
    ],
)
def test_which_cpu_times_are_computing(uses, computes):
    assert Machine().sample(**uses) == ({7} if computes else set())


def test_a_loop_that_waits_for_a_gpu_does_not_compute():
    machine = Machine(uses_gpu=True)
    assert machine.sample(user=1.0) == set()
    assert machine.sample(children=1.0) == {7}


@pytest.mark.parametrize(
    ("uses", "computes"),
    [
        ({"threads_user": 1.0}, True),
        ({"threads_user": 0.75, "threads_system": 0.23}, False),
        ({"threads_user": 0.05}, False),  # monitors
    ],
)
def test_other_threads_count_for_a_main_thread_that_waits_for_them(uses, computes):
    assert Machine().sample(**uses) == set()
    assert Machine().sample(threaded=[7], **uses) == ({7} if computes else set())
    assert Machine(uses_gpu=True).sample(threaded=[7], **uses) == set()


def test_a_short_time_is_not_enough():
    machine = Machine()
    assert machine.sample(SPAN / 2, user=1.0) == set()
    assert machine.sample(SPAN / 2, user=1.0) == {7}
    assert machine.sample(SPAN / 2, user=1.0) == set()  # the next span


def test_a_process_that_was_not_sampled_starts_a_new_span():
    machine = Machine()
    machine.watch.sample({8: SPAN})
    assert machine.sample(user=1.0) == set()
    assert machine.sample(user=1.0) == {7}
