"""Attempts to connect to the store of a job, which all threads of a node share."""

from __future__ import annotations

import threading

import pytest
from plaunch.errors import RendezvousConnectionError
from plaunch_job_store.authentication import Authenticator
from plaunch_membership import StoreNotListeningError
from plaunch_rendezvous_c10d.endpoint import CONNECT_BOUNDS, StoreEndpoint
from plaunch_rendezvous_c10d.job_store import JobStoreConnector

from helpers.calls import Call
from helpers.clock import Clock
from helpers.waiting import wait_until

THREADS = 5


class DeadEndpoint(StoreEndpoint):
    """An endpoint whose attempts fail when the test says so."""

    def __init__(self):
        super().__init__("127.0.0.1", 1)
        self.attempts = 0
        self.fails = threading.Event()

    def dial(self, timeout):
        self.attempts += 1
        number = self.attempts
        assert self.fails.wait(60)
        raise StoreNotListeningError(f"attempt {number} failed")


class CountingClock(Clock):
    """Counts how often it was read: each call of `client` reads it first."""

    reads = 0
    leap = 0.0  # seconds that pass after the next time it is read

    def __call__(self):
        self.reads += 1
        now = super().__call__()
        self.now, self.leap = now + self.leap, 0.0
        return now


@pytest.fixture
def clock():
    return CountingClock()


@pytest.fixture
def endpoint():
    return DeadEndpoint()


@pytest.fixture
def connector(endpoint, clock):
    return JobStoreConnector(endpoint, Authenticator(None, "job"), 60.0, clock=clock)


def errors_of(calls):
    errors = []
    for call in calls:
        with pytest.raises(RendezvousConnectionError) as caught:
            call.get()
        errors.append(caught.value)
    return errors


def begin_calls(connector, clock):
    """Begin calls on several threads; all wait for one attempt then."""
    calls = [Call(connector.client) for _ in range(THREADS)]
    wait_until(lambda: clock.reads == THREADS, "all threads want the connection")
    return calls


def test_threads_that_wait_for_an_attempt_share_its_failure(connector, endpoint, clock):
    calls = begin_calls(connector, clock)
    clock.advance(CONNECT_BOUNDS.timeout)  # of this attempt
    endpoint.fails.set()
    errors = errors_of(calls)
    assert endpoint.attempts == 1
    assert {str(error) for error in errors} == {"attempt 1 failed"}
    assert {type(error) for error in errors} == {StoreNotListeningError}
    assert len({*map(id, errors)}) == THREADS  # each thread adds its own traceback


def test_a_call_after_a_failure_is_another_attempt(connector, endpoint, clock):
    endpoint.fails.set()
    for number in (1, 2):
        clock.advance(0.001)
        with pytest.raises(RendezvousConnectionError, match=f"attempt {number} failed"):
            connector.client()


def test_a_failure_that_is_old_is_not_shared(connector, endpoint, clock):
    """The launcher was suspended in between, for example."""
    dial = endpoint.dial

    def dial_then_sleep(timeout):
        try:
            return dial(timeout)
        finally:
            clock.leap = CONNECT_BOUNDS.timeout  # once the time of the failure has been read

    endpoint.dial = dial_then_sleep
    calls = begin_calls(connector, clock)
    endpoint.fails.set()
    errors_of(calls)
    assert endpoint.attempts == THREADS
