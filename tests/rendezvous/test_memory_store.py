"""The store in memory: the protocol, and the faults that tests switch on."""

from __future__ import annotations

import threading
import time

import pytest
from plaunch.errors import RendezvousConnectionError
from plaunch.testing import MemoryBoard

BOUND = 30.0  # seconds within which everything here has long happened


@pytest.fixture
def board():
    return MemoryBoard()


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
        deadline = time.monotonic() + BOUND
        # It holds the lock from its first look until it sleeps.
        while key not in board._waiting or not board._waiting[key]._waiters:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def _run(self, key, timeout):
        try:
            self.result = self.store.wait(key, timeout)
        except RendezvousConnectionError as error:
            self.result = error

    def join(self):
        self._thread.join(BOUND)
        assert not self._thread.is_alive()
        return self.result


def test_values(store):
    assert store.multi_get(["a", "b"]) == [None, None]
    store.set("a", b"1")
    store.multi_set({"b": b"2", "c": b"3"})
    assert store.multi_get(["c", "a", "b", "a"]) == [b"3", b"1", b"2", b"1"]
    store.delete("a")
    store.delete("a")
    assert store.multi_get(["a", "b"]) == [None, b"2"]


def test_connections_share_what_they_hold(board, store):
    store.set("b", b"1")
    board.connect().set("a", b"2")
    assert board.keys() == ["a", "b"]
    board.wipe()
    assert board.keys() == []
    assert store.multi_get(["a"]) == [None]


def test_counters(store):
    assert [store.add("n", amount) for amount in (1, 0, 5, -2)] == [1, 1, 6, 4]
    assert store.multi_get(["n"]) == [b"4"]


def test_a_counter_gives_no_number_twice(board):
    taken = []

    def take():
        store = board.connect()
        taken.extend([store.add("n", 1) for _ in range(50)])

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert sorted(taken) == list(range(1, 401))


@pytest.mark.parametrize(
    ("held", "expected", "result"),
    [
        (None, None, b"new"),
        (b"old", None, b"old"),
        (b"old", b"old", b"new"),
        (b"old", b"other", b"old"),
        (None, b"other", None),
    ],
)
def test_compare_set(board, store, held, expected, result):
    if held is not None:
        store.set("k", held)
    assert store.compare_set("k", expected, b"new") == result
    assert board.data.get("k") == result


@pytest.mark.parametrize("name", ["set", "beat"])
def test_an_empty_value_is_refused(store, name):
    with pytest.raises(ValueError, match="an empty value for 'k'"):
        getattr(store, name)("k", b"")


def test_a_wait_for_what_is_there_returns_at_once(store):
    store.set("k", b"v")
    assert store.wait("k", 0) == b"v"


def test_a_wait_ends_without_a_value(store):
    assert store.wait("k", 0) is None
    assert store.wait("k", 0.01) is None


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.set("k", b"1"),
        lambda store: store.add("k", 1),
        lambda store: store.compare_set("k", None, b"1"),
        lambda store: store.multi_set({"j": b"0", "k": b"1"}),
        lambda store: store.beat("k", b"1"),
    ],
)
def test_all_who_wait_are_woken_by_any_write(board, store, write):
    waiters = [Waiter(board, "k") for _ in range(3)]
    store.set("other", b"0")
    write(store)
    assert [waiter.join() for waiter in waiters] == [b"1"] * 3


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
    monkeypatch.setattr("plaunch.testing.store.time.sleep", slept.append)
    board.delay = 0.25
    store.set("a", b"1")
    store.multi_get(["a"])
    assert slept == [0.25, 0.25]
