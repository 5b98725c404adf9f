"""The store in memory: the faults that tests inject, and its counters.

The conformance suite checks that it is a valid store.
"""

from __future__ import annotations

import pytest
from plaunch.errors import RendezvousConnectionError
from plaunch_membership.testing import MemoryBoard

from helpers.calls import Call
from helpers.waiting import wait_until

BOUND = 30.0  # seconds within which everything here has long happened


@pytest.fixture
def store(board):
    return board.connect()


def wait_for(board, key):
    """Start a wait on another connection; return its result and the connection."""
    store = board.connect()
    call = Call(store.wait, key, BOUND)
    # It holds the lock from its first check until it sleeps.
    wait_until(lambda: board.sleepers, "it sleeps")
    return call, store


def test_connections_share_their_data(board, store):
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
    calls = [wait_for(board, key)[0] for key in ("a", "b")]
    board.down = True
    for call in calls:
        with pytest.raises(RendezvousConnectionError):
            call.get()
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


def test_closing_ends_only_the_waits_of_that_connection(board, store):
    (ended, closed), (other, _) = wait_for(board, "k"), wait_for(board, "k")
    closed.close()
    closed.close()
    with pytest.raises(RendezvousConnectionError):
        ended.get()
    with pytest.raises(RendezvousConnectionError, match="closed"):
        closed.multi_get([])
    store.set("k", b"v")
    assert other.get() == b"v"


def test_operations_are_counted_for_each_connection(board, store):
    store.set("a", b"1")
    store.set("b", b"1")
    store.add("n", 1)
    board.connect().beat("c", b"1")
    assert store.operations == {"set": 2, "add": 1}
    assert store.operations.total() == 3


def test_a_slow_store():
    slept = []
    board = MemoryBoard(sleep=slept.append)
    store = board.connect()
    board.delay = 0.25
    store.set("a", b"1")
    store.multi_get(["a"])
    assert slept == [0.25, 0.25]
