"""The store in memory: the faults that tests switch on, and what it counts.

That it does what every store must is for the conformance suite to show.
"""

from __future__ import annotations

import threading

import pytest
from plaunch.errors import RendezvousConnectionError

from helpers.waiting import wait_until

BOUND = 30.0  # seconds within which everything here has long happened


@pytest.fixture
def store(board):
    return board.connect()


class Waiter:
    """A connection that waits in a thread of its own."""

    def __init__(self, board, key, timeout=BOUND):
        self.store = board.connect()
        self.result = None
        self._thread = threading.Thread(target=self._run, args=(key, timeout), daemon=True)
        self._thread.start()
        # It holds the lock from its first look until it sleeps.
        wait_until(lambda: key in board._waiting and board._waiting[key]._waiters, "it sleeps")

    def _run(self, key, timeout):
        try:
            self.result = self.store.wait(key, timeout)
        except RendezvousConnectionError as error:
            self.result = error

    def join(self):
        self._thread.join(BOUND)
        assert not self._thread.is_alive()
        return self.result


def test_connections_share_what_they_hold(board, store):
    store.set("b", b"1")
    board.connect().set("a", b"2")
    assert board.keys() == ["a", "b"]
    board.wipe()
    assert board.keys() == []
    assert store.multi_get(["a"]) == [None]


@pytest.mark.parametrize("name", ["set", "beat"])
def test_an_empty_value_is_refused(store, name):
    with pytest.raises(ValueError, match="an empty value for 'k'"):
        getattr(store, name)("k", b"")


def test_an_outage_ends_every_wait_and_refuses_everything(board, store):
    store.set("k", b"v")
    waiters = [Waiter(board, key) for key in ("a", "b")]
    board.down = True
    assert all(isinstance(waiter.join(), RendezvousConnectionError) for waiter in waiters)
    for operation in (
        lambda: store.set("k", b"x"),
        lambda: store.add("n", 1),
        lambda: store.compare_set("k", b"v", b"x"),
        lambda: store.multi_get(["k"]),
        lambda: store.multi_set({"k": b"x"}),
        lambda: store.wait("k", 0),
        lambda: store.delete("k"),
        lambda: store.beat("k", b"x"),
        board.connect,
    ):
        with pytest.raises(RendezvousConnectionError, match="down"):
            operation()
    board.down = False
    assert store.multi_get(["k", "n"]) == [b"v", None]


def test_closing_ends_the_connections_own_wait_only(board, store):
    waiters = [Waiter(board, "k") for _ in range(2)]
    waiters[0].store.close()
    waiters[0].store.close()
    assert isinstance(waiters[0].join(), RendezvousConnectionError)
    with pytest.raises(RendezvousConnectionError, match="closed"):
        waiters[0].store.multi_get([])
    store.set("k", b"v")
    assert waiters[1].join() == b"v"


def test_operations_are_counted_for_each_connection(board, store):
    store.set("a", b"1")
    store.set("b", b"1")
    store.add("n", 1)
    board.connect().beat("c", b"1")
    assert store.operations == {"set": 2, "add": 1}
    assert store.operations.total() == 3


def test_a_slow_store(board, store, monkeypatch):
    slept = []
    monkeypatch.setattr("plaunch_membership.testing.time.sleep", slept.append)
    board.delay = 0.25
    store.set("a", b"1")
    store.multi_get(["a"])
    assert slept == [0.25, 0.25]
