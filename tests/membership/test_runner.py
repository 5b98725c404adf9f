"""Routines on threads: retries, stuck threads, stopping."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from plaunch.errors import RendezvousConnectionError, RendezvousStateError
from plaunch_membership.operations import Add, Set, Sleep, Wait

from helpers.clock import Clock
from helpers.faults import raising
from helpers.waiting import wait_until

BOUND = 20.0  # seconds within which everything here has long happened


def test_a_routine_gets_the_results_of_its_operations(run, board):
    results = []

    def routine():
        results.append((yield Set("a", b"1")))
        results.append((yield Add("n", 3)))
        results.append((yield Add("n", 4)))
        results.append((yield Wait("a", 5.0)))

    _, ended = run(routine(), board.connect)
    assert ended.wait() is None
    assert results == [None, 3, 7, b"1"]


def test_the_error_of_a_routine_is_reported(run, board):
    def routine():
        yield Set("a", b"1")
        raise RendezvousStateError("nonsense in the store")

    _, ended = run(routine(), board.connect)
    assert isinstance(ended.wait(), RendezvousStateError)


def test_a_failed_operation_is_repeated_over_a_new_connection(run, board):
    board.down = True
    runner, ended = run(iter_once(Add("n", 1)), board.connect)
    wait_until(lambda: runner.problem is not None, "a problem")
    assert "down" in str(runner.problem)
    assert not ended.event.is_set()
    board.down = False
    assert ended.wait() is None
    assert board.data["n"] == b"1"
    assert runner.problem is None


def test_failures_and_answers_are_reported(run, board):
    class Outage:
        def __init__(self):
            self.errors, self.answers = [], 0

        def failed(self, error):
            self.errors.append(str(error))

        def recovered(self):
            self.answers += 1

    outage = Outage()
    board.down = True
    _, ended = run(iter_once(Add("n", 1)), board.connect, outage=outage)
    wait_until(lambda: outage.errors, "a failure")
    assert "down" in outage.errors[0]
    assert outage.answers == 0
    board.down = False
    assert ended.wait() is None
    assert outage.answers == 1


def test_a_lost_connection_is_replaced(run, board):
    stores = []

    def connect():
        stores.append(board.connect())
        return stores[-1]

    def routine():
        yield Add("n", 1)
        stores[-1].close()
        yield Add("n", 1)

    _, ended = run(routine(), connect)
    assert ended.wait() is None
    assert board.data["n"] == b"2"
    assert len(stores) == 2


def test_a_nudge_ends_a_sleep(run, board):
    runner, ended = run(iter_once(Sleep(1000.0)), board.connect)
    runner.nudge()
    assert ended.wait() is None


def test_no_operation_starts_after_a_stop(run, board):
    def routine():
        yield Sleep(1000.0)
        yield Set("a", b"1")

    runner, ended = run(routine(), board.connect)
    runner.stop()
    assert runner.join(BOUND)
    assert not ended.event.is_set()
    assert board.keys() == []


def test_a_stop_ends_a_wait(run, board):
    """A thread that is still inside a C++ library may abort the interpreter at exit."""
    runner, ended = run(iter_once(Wait("never", 1000.0)), board.connect)
    wait_until(lambda: runner.overdue() < 0, "it waits")
    runner.stop()
    assert runner.join(BOUND)
    assert not ended.event.is_set()


def test_a_stop_ends_the_attempts_to_connect(run, board):
    board.down = True
    runner, _ = run(iter_once(Set("a", b"1")), board.connect)
    wait_until(lambda: runner.problem is not None, "a problem")
    runner.stop()
    assert runner.join(BOUND)


class StuckStore:
    """A store whose first operation returns when the test allows it, and then succeeds."""

    def __init__(self):
        self.asked = threading.Event()
        self.answer = threading.Event()
        self.is_closed = False

    def add(self, key, amount):
        self.asked.set()
        assert self.answer.wait(BOUND)
        return 1000

    def close(self):
        self.is_closed = True
        self.answer.set()


def test_a_stuck_operation_is_closed_after_another_thread_takes_over(run, board):
    stuck = StuckStore()
    stores = [stuck]
    runner, ended = run(iter_once(Add("n", 1)), lambda: stores.pop() if stores else board.connect())
    assert stuck.asked.wait(BOUND)
    runner.renew()
    assert stuck.is_closed
    assert ended.wait() is None


class StubbornStore(StuckStore):
    """A store whose operation ignores `close`."""

    def close(self):
        self.is_closed = True


def test_a_stuck_operation_is_handed_to_another_thread(run, board):
    """The result of the first thread is discarded."""
    clock = Clock(0.0)
    stuck = StubbornStore()
    stores = [stuck]
    results = []

    def routine():
        results.append((yield Add("n", 1)))
        results.append((yield Add("n", 1)))

    runner, ended = run(routine(), lambda: stores.pop() if stores else board.connect(), clock=clock)
    assert stuck.asked.wait(BOUND)
    clock.now = 30.0
    assert runner.overdue() == 30.0
    runner.renew()
    assert ended.wait() is None
    assert results == [1, 2]
    stuck.is_closed = False
    stuck.answer.set()
    wait_until(lambda: stuck.is_closed, "the connection is closed")
    assert results == [1, 2]


def test_a_wait_is_not_overdue_before_its_timeout(run, board):
    clock = Clock(0.0)
    runner, _ = run(iter_once(Wait("never", 10.0)), board.connect, clock=clock)
    wait_until(lambda: runner.overdue() == -10.0, "it waits")
    clock.now = 12.0
    assert runner.overdue() == 2.0
    board.write({"never": b"1"})


def test_a_sleep_is_never_overdue(run, board):
    runner, _ = run(iter_once(Sleep(1000.0)), board.connect)
    assert runner.overdue() == 0.0
    runner.renew()  # nothing to renew


def test_an_error_that_is_not_a_connection_error_ends_the_routine(run, board):
    broken = SimpleNamespace(
        add=raising(TypeError("a defect of the backend")),
        close=raising(RendezvousConnectionError("closed badly")),
    )
    _, ended = run(iter_once(Add("n", 1)), lambda: broken)
    assert isinstance(ended.wait(), TypeError)


def iter_once(operation):
    yield operation


# --- whether the store is silent ------------------------------------------------------------------


def test_a_store_without_requests_is_not_silent(run, board):
    clock, has_answer = Clock(), threading.Event()

    def routine():
        yield Add("n", 1)
        has_answer.set()
        yield Sleep(1000.0)

    runner, _ = run(routine(), board.connect, clock=clock)
    assert has_answer.wait(BOUND)
    clock.now += 500.0
    assert runner.silent_for() == 0.0


def test_silence_lasts_over_retries_until_there_is_an_answer(run, board):
    clock = Clock()
    board.down = True
    runner, ended = run(iter_once(Add("n", 1)), board.connect, clock=clock)
    wait_until(lambda: runner.problem is not None, "a problem")
    for _ in range(8):
        clock.now += 1.0
    assert runner.silent_for() == 8.0
    board.down = False
    clock.now += 10.0  # so that the next attempt is due
    assert ended.wait() is None
    assert runner.silent_for() == 0.0


def test_a_wait_counts_as_silence_only_after_its_timeout(run, board, gate):
    clock, store = Clock(), gate("wait")
    store.is_shut = True
    runner, ended = run(iter_once(Wait("never", 5.0)), store.connect, clock=clock)
    assert store.asked.wait(BOUND)
    clock.now += 4.0
    assert runner.silent_for() == 0.0
    clock.now += 4.0
    assert runner.silent_for() == 3.0
    board.write({"never": b"1"})
    store.open()
    assert ended.wait() is None
