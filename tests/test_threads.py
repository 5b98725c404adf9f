"""Calls on threads: many that follow each other share one."""

from __future__ import annotations

import threading

import pytest
from plaunch.threads import CallThread

from helpers.waiting import wait_until

BOUND = 60.0  # seconds


@pytest.fixture
def shared():
    thread = CallThread(linger=BOUND)
    yield thread
    thread.rest()


def result_of(call):
    assert call.wait(BOUND)
    if call.error is not None:
        raise call.error
    return call.result


def test_calls_that_follow_each_other_share_a_thread(shared):
    threads = {result_of(shared.call("exit", threading.current_thread)) for _ in range(1000)}
    assert len(threads) == 1
    assert threading.current_thread() not in threads
    assert {thread.name for thread in threads} == {"plaunch-exit"}


def test_an_error_of_a_call_does_not_end_the_thread(shared):
    first = result_of(shared.call("first", threading.current_thread))
    with pytest.raises(ZeroDivisionError):
        result_of(shared.call("second", lambda: 1 // 0))
    with pytest.raises(SystemExit):
        result_of(shared.call("third", lambda: exec("raise SystemExit(3)")))
    assert result_of(shared.call("fourth", threading.current_thread)) is first
    assert first.name == "plaunch-fourth"


def test_a_call_beside_one_that_hangs_has_another_thread(shared):
    gate = threading.Event()
    hanging = shared.call("hangs", gate.wait)
    assert not hanging.wait(0)
    assert hanging.is_out()
    other = result_of(shared.call("other", threading.current_thread))
    assert result_of(shared.call("next", threading.current_thread)) is other
    gate.set()
    assert result_of(hanging) is True
    assert not hanging.is_out()


def test_calls_of_several_threads_all_return(shared):
    results = []
    callers = [
        threading.Thread(
            target=lambda: results.extend(
                result_of(shared.call("one", lambda number=number: number)) for number in range(200)
            )
        )
        for _ in range(8)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(BOUND)
    assert sorted(results) == sorted([*range(200)] * 8)


def test_rest_ends_the_thread(shared):
    thread = result_of(shared.call("one", threading.current_thread))
    assert thread.is_alive()
    shared.rest()
    assert not thread.is_alive()
    assert result_of(shared.call("two", threading.current_thread)) is not thread
    shared.rest()
    shared.rest()


def test_a_thread_without_calls_ends():
    shared = CallThread(linger=0.0)
    thread = result_of(shared.call("one", threading.current_thread))
    wait_until(lambda: not thread.is_alive(), "it ends")
    assert result_of(shared.call("two", threading.current_thread)) is not thread
