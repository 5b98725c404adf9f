"""Workers that compute, from made-up CPU times."""

from __future__ import annotations

import pytest
from plaunch_hang.process import ComputeWatch, ProcessorTime, ThreadTime

SPAN = 5.0  # seconds


class Machine:
    """Two processes, 7 and 8; 7 uses the given CPU time per second.

    Process 7 has the threads 7 and 71, and a child, 70.
    """

    def __init__(self, *, uses_gpu=False):
        self.now = 100.0
        self.totals = {}  # used by process 7, by name
        self.watch = ComputeWatch(self.read, lambda pid: uses_gpu, lambda: self.now)
        self.sample(0.0)

    def read(self, trees):
        used = self.totals
        own, waited = used.get("user", 0.0) + used.get("system", 0.0), used.get("waited", 0.0)
        every = used.get("threads_user", 0.0) + used.get("threads_system", 0.0)
        child, child_waited = used.get("child", 0.0), used.get("child_waited", 0.0)
        busy = ProcessorTime(
            user=used.get("user", 0.0),
            system=used.get("system", 0.0),
            threads_user=used.get("threads_user", 0.0),
            threads_system=used.get("threads_system", 0.0),
            children=child + used.get("ended", 0.0),
            threads={
                7: ThreadTime(own, waited, is_runnable="runnable" in used),
                71: ThreadTime(every - own, used.get("thread_waited", 0.0)),
            },
            child_threads={70: ThreadTime(child, child_waited)},
            descendants=1,
        )
        return {
            pid: busy if pid == 7 else ProcessorTime(threads={8: ThreadTime()}) for pid in trees
        }

    def sample(self, seconds=SPAN, threaded=(), **uses):
        self.now += seconds
        for name, share in uses.items():
            self.totals[name] = self.totals.get(name, 0.0) + share * seconds
        return self.watch.sample(dict.fromkeys((7, 8), SPAN), threaded)


@pytest.mark.parametrize(
    ("uses", "computes"),
    [
        ({"user": 1.0}, True),
        ({"user": 0.95, "system": 0.05}, True),
        ({"user": 0.1}, True),  # other threads of Python have the lock
        ({"user": 0.04, "waited": 0.9}, True),  # a busy machine, or a limit of a container
        ({"user": 0.001, "waited": 0.999}, True),
        ({}, False),
        ({"user": 0.03}, False),  # sleeps for a millisecond at a time
        ({"user": 0.03, "waited": 0.5}, False),  # the same on a busy machine
        ({"user": 0.06, "system": 0.05}, False),  # sleeps for less
        ({"user": 0.75, "system": 0.23}, False),  # epoll_wait without a timeout
        ({"user": 0.38, "system": 0.58}, False),  # sched_yield
        ({"child": 1.0}, True),
        ({"child": 0.02}, False),
        ({"child": 0.02, "child_waited": 0.95}, True),  # a busy machine
        ({"child": 0.02, "child_waited": 0.5}, False),
        ({"ended": 0.2}, True),
        ({"ended": 0.002}, False),  # ticks are not exact
    ],
)
def test_which_cpu_times_are_computing(uses, computes):
    assert Machine().sample(**uses) == ({7} if computes else set())


def test_a_thread_that_gets_no_cpu_at_all_computes():
    """The kernel counts the time in a run queue when it ends."""
    machine = Machine()
    assert machine.sample() == set()
    machine.totals["runnable"] = True
    assert machine.sample() == {7}


def test_a_loop_that_waits_for_a_gpu_does_not_compute():
    machine = Machine(uses_gpu=True)
    assert machine.sample(user=1.0) == set()
    assert machine.sample(child=1.0) == {7}


@pytest.mark.parametrize(
    ("uses", "computes"),
    [
        ({"threads_user": 1.0}, True),
        ({"threads_user": 0.75, "threads_system": 0.23}, False),
        ({"threads_user": 0.05}, False),  # monitors
        ({"threads_user": 0.05, "thread_waited": 0.9}, True),  # a busy machine
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
