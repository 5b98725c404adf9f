"""The conformance suite for rendezvous stores."""

from __future__ import annotations

import re
import secrets
import threading
import time
from typing import TYPE_CHECKING, ClassVar

import pytest
from plaunch.errors import RendezvousConnectionError
from plaunch.process import ProcessFailure
from plaunch.rendezvous import NodeSettings, RendezvousParameters
from plaunch_membership import (
    Add,
    Append,
    CompareSet,
    DynamicRendezvousHandler,
    MultiGet,
    Set,
    StoreAccess,
    WriteHeartbeat,
)

from plaunch_testing.conformance.nodes import BOUND, NodeConnections, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plaunch_membership import RendezvousStore

_WRITES: dict[str, Callable[[RendezvousStore, str], object]] = {
    "set": lambda store, key: store.set(key, b"1"),
    "add": lambda store, key: store.add(key, 1),
    "compare_set": lambda store, key: store.compare_set(key, None, b"1"),
    "multi_set": lambda store, key: store.multi_set({f"{key}/other": b"0", key: b"1"}),
    "beat": lambda store, key: store.beat(key, b"1"),
    "append": lambda store, key: store.append(key.rpartition("/")[0], b"1"),
    "batch": lambda store, key: store.batch([Set(key, b"1")]),
}


class RendezvousStoreConformance:
    """Subclass this suite and implement `connect`; pytest collects the subclass.

    All connections of a test must lead to one store. It may contain data: the keys of each test
    have their own prefix.
    """

    waiters: ClassVar[int] = 32  # how many connections wait at once

    def connect(self) -> RendezvousStore:
        """Open another connection to the store; override this."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _connections(self) -> Iterator[None]:
        self._opened: list[RendezvousStore] = []
        self._prefix = f"conformance/{secrets.token_hex(6)}"
        yield
        for store in self._opened:
            store.close()

    def open(self) -> RendezvousStore:
        """Open a connection that is closed after the test."""
        store = self.connect()
        self._opened.append(store)
        return store

    def key(self, name: str) -> str:
        """Return a key of this test."""
        return f"{self._prefix}/{name}"

    def wait_in_thread(self, key: str, timeout: float = BOUND) -> Callable[[], object]:
        """Wait for a key on another connection; return a function that returns value or error."""
        store, outcome = self.open(), list[object]()
        ready = threading.Event()

        def run() -> None:
            try:
                store.multi_get([key])  # establishes the connection
                ready.set()
                outcome.append(store.wait(key, timeout))
            except RendezvousConnectionError as error:
                ready.set()
                outcome.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert ready.wait(BOUND)

        def result() -> object:
            thread.join(BOUND)
            assert outcome, f"a wait has not ended within {BOUND} s"
            return outcome[0]

        return result

    # --- values -----------------------------------------------------------------------------------

    def test_a_missing_value_is_none(self) -> None:
        """`multi_get` does not wait for missing keys."""
        keys = [self.key(str(number)) for number in range(10)]
        assert self.open().multi_get(keys) == [None] * 10
        assert self.open().multi_get([]) == []

    def test_a_value_is_seen_by_every_connection(self) -> None:
        """Each connection sees each change."""
        one, other = self.open(), self.open()
        for value in (b"first", b"second"):
            one.set(self.key("a"), value)
            assert other.multi_get([self.key("a")]) == [value]

    def test_many_values_come_in_the_order_of_the_keys(self) -> None:
        """Keys may be missing or repeated."""
        store = self.open()
        there = range(0, 300, 3)
        store.multi_set({self.key(str(n)): b"%d" % n for n in there})
        asked = [*reversed(range(300)), 0, 0]
        expected = [b"%d" % n if n in there else None for n in asked]
        assert store.multi_get([self.key(str(n)) for n in asked]) == expected

    @pytest.mark.parametrize("size", [1, 100, 1 << 16, 1 << 20])
    def test_values_of_any_size_up_to_the_largest_record(self, size: int) -> None:
        """The largest value that plaunch writes is 1 MiB."""
        store, value = self.open(), b"x" * size
        store.set(self.key("large"), value)
        assert store.multi_get([self.key("large")]) == [value]
        assert store.wait(self.key("large"), 1.0) == value

    @pytest.mark.parametrize("name", ["a", "a/b", "a%20b", "a~b:c", "x" * 300])
    def test_keys_are_printable_ascii(self, name: str) -> None:
        """Slashes have no meaning, and a key may be a prefix of another."""
        store = self.open()
        store.set(self.key(name), b"1")
        store.set(self.key(name) + "/below", b"2")
        assert store.multi_get([self.key(name), self.key(name) + "/below"]) == [b"1", b"2"]

    def test_a_deleted_value_is_gone(self) -> None:
        """Deleting a missing key is not an error."""
        store, key = self.open(), self.key("a")
        store.set(key, b"1")
        store.delete(key)
        store.delete(key)
        assert store.multi_get([key]) == [None]
        store.set(key, b"2")
        assert store.multi_get([key]) == [b"2"]

    def test_a_heartbeat_can_be_read(self) -> None:
        """The next heartbeat replaces it."""
        store, key = self.open(), self.key("beat")
        for value in (b"1", b"2"):
            store.beat(key, value)
            assert self.open().multi_get([key]) == [value]

    # --- atomic operations ------------------------------------------------------------------------

    def test_a_counter_begins_at_0(self) -> None:
        """Adding 0 reads it, also on another connection."""
        store, key = self.open(), self.key("n")
        assert [store.add(key, amount) for amount in (0, 1, 5, -2)] == [0, 1, 6, 4]
        assert self.open().add(key, 0) == 4

    def test_a_counter_gives_no_number_twice(self) -> None:
        """Concurrent `add` calls return different numbers."""
        taken: list[int] = []

        def take(store: RendezvousStore) -> None:
            taken.extend([store.add(self.key("n"), 1) for _ in range(20)])

        self._at_once(8, take)
        assert sorted(taken) == list(range(1, 161))

    @pytest.mark.parametrize(
        ("held", "expected", "result"),
        [
            (None, None, b"new"),
            (b"old", None, b"old"),
            (b"new", None, b"new"),
            (b"old", b"old", b"new"),
            (b"old", b"other", b"old"),
            (b"new", b"other", b"new"),
            (None, b"other", None),
        ],
    )
    def test_compare_set(
        self, held: bytes | None, expected: bytes | None, result: bytes | None
    ) -> None:
        """It returns the value afterwards; None if there is none."""
        store, key = self.open(), self.key("a")
        if held is not None:
            store.set(key, held)
        assert store.compare_set(key, expected, b"new") == result
        assert self.open().multi_get([key]) == [result]

    def test_one_of_many_wins(self) -> None:
        """All others get the winner's value."""
        answers: list[tuple[bytes, bytes | None]] = []

        def compete(store: RendezvousStore) -> None:
            mine = secrets.token_hex(8).encode()
            answers.append((mine, store.compare_set(self.key("a"), None, mine)))

        self._at_once(16, compete)
        assert len({held for _, held in answers}) == 1
        assert sum(mine == held for mine, held in answers) == 1

    # --- several operations at once ---------------------------------------------------------------

    def test_records_of_a_log_have_consecutive_tickets(self) -> None:
        """Concurrent `append` calls return different tickets, under which the records are."""
        log, taken = self.key("log"), dict[int, bytes]()

        def append(store: RendezvousStore) -> None:
            for _ in range(5):
                value = secrets.token_hex(8).encode()
                taken[store.append(log, value)] = value

        self._at_once(8, append)
        assert sorted(taken) == list(range(1, 41))
        store = self.open()
        assert store.multi_get([f"{log}/{ticket}" for ticket in taken]) == list(taken.values())
        assert store.add(f"{log}/tickets", 0) == 40

    def test_others_are_read_behind_a_wait(self) -> None:
        """They are read once the key has a value; nothing is read if it has none in time."""
        store, other = self.open(), self.open()
        key, there, missing = self.key("a"), self.key("b"), self.key("c")
        store.set(there, b"2")
        assert store.wait_then_get(key, 0.05, [there, missing]) == [None, None, None]
        found: list[object] = []
        thread = threading.Thread(
            target=lambda: found.append(other.wait_then_get(key, BOUND, [there, missing]))
        )
        thread.start()
        store.set(there, b"3")
        store.set(key, b"1")
        thread.join(BOUND)
        assert found == [[b"1", b"3", None]]
        assert store.wait_then_get(key, 0.0, []) == [b"1"]

    def test_a_batch_returns_the_results_in_order(self) -> None:
        """Each operation sees the effects of those before it."""
        store, key, log = self.open(), self.key("a"), self.key("log")
        done = store.batch(
            [
                Set(key, b"1"),
                CompareSet(key, None, b"2"),
                CompareSet(key, b"1", b"3"),
                CompareSet(self.key("none"), b"1", b"3"),
                Add(self.key("n"), 5),
                Append(log, b"4"),
                WriteHeartbeat(self.key("beat"), b"5"),
                MultiGet([key, self.key("none"), f"{log}/1", self.key("beat")]),
                MultiGet([]),
            ]
        )
        assert done[1:6] == [b"1", b"3", None, 5, 1]
        assert done[7:] == [[b"3", None, b"4", b"5"], []]

    # --- waiting ----------------------------------------------------------------------------------

    def test_a_wait_for_what_is_there_returns_it(self) -> None:
        """A timeout of 0 suffices."""
        store, key = self.open(), self.key("a")
        store.set(key, b"1")
        assert store.wait(key, 0.0) == b"1"
        assert store.wait(key, BOUND) == b"1"

    @pytest.mark.parametrize("timeout", [0.0, 0.05, 0.5])
    def test_a_wait_ends_without_a_value(self, timeout: float) -> None:
        """It returns None after the timeout, and the connection stays usable."""
        store, key = self.open(), self.key("a")
        began = time.monotonic()
        assert store.wait(key, timeout) is None
        assert timeout * 0.9 <= time.monotonic() - began < BOUND / 2
        store.set(key, b"1")
        assert store.wait(key, timeout) == b"1"

    @pytest.mark.parametrize("write", _WRITES)
    def test_a_wait_is_woken_by_any_write(self, write: str) -> None:
        """The write comes from another connection."""
        store, key = self.open(), self.key("1")
        result = self.wait_in_thread(key)
        _WRITES[write](store, key)
        assert result() == b"1"

    def test_all_waiters_are_woken(self) -> None:
        """One write wakes all of them, each on its own connection; other keys do not."""
        store, key = self.open(), self.key("a")
        results = [self.wait_in_thread(key) for _ in range(self.waiters)]
        store.set(self.key("another"), b"0")
        store.set(key, b"1")
        assert [result() for result in results] == [b"1"] * self.waiters

    def test_a_wait_does_not_hold_up_other_connections(self) -> None:
        """A heartbeat must never wait for another operation."""
        self.wait_in_thread(self.key("never"))
        store = self.open()
        began = time.monotonic()
        store.set(self.key("a"), b"1")
        assert store.add(self.key("n"), 1) == 1
        assert time.monotonic() - began < BOUND / 2
        store.set(self.key("never"), b"1")

    # --- ends -------------------------------------------------------------------------------------

    def test_a_closed_connection_refuses_everything(self) -> None:
        """Closing twice is allowed."""
        store = self.open()
        store.set(self.key("a"), b"1")
        store.close()
        store.close()
        with pytest.raises(RendezvousConnectionError):
            store.set(self.key("a"), b"2")
        with pytest.raises(RendezvousConnectionError):
            store.multi_get([self.key("a")])

    def test_closing_does_not_touch_others(self) -> None:
        """Other connections and written values stay."""
        one, other = self.open(), self.open()
        one.set(self.key("a"), b"1")
        one.close()
        assert other.multi_get([self.key("a")]) == [b"1"]

    def test_closing_ends_a_wait(self) -> None:
        """Another thread may close a connection that waits; the wait ends before its timeout."""
        result = self.wait_in_thread(self.key("never"), timeout=10 * BOUND)
        self._opened[-1].close()
        outcome = result()
        assert outcome is None or isinstance(outcome, RendezvousConnectionError)

    # --- a job ------------------------------------------------------------------------------------

    def test_past_rounds_are_deleted(self) -> None:
        """A job that restarts for weeks needs little space; its last two rounds stay readable."""
        params = RendezvousParameters(
            "conformance",
            "",
            self._prefix,
            1,
            1,
            "127.0.0.1",
            keep_alive_interval=0.25,
        )
        wire, last = NodeConnections(self.open), 4
        rounds: dict[int, list[str]] = {}
        handler = DynamicRendezvousHandler(params, StoreAccess(wire.connect, "127.0.0.1"))
        handler.prepare(NodeSettings(max_restarts=9))
        try:
            for _ in range(last):
                handler.next_rendezvous()
                handler.report_failure({0: ProcessFailure(0, 4242, 1, "")})
            assert handler.next_rendezvous().round == last
            for key in wire.keys:
                if found := re.search(r"/round/(\d+)/", key):
                    rounds.setdefault(int(found[1]), []).append(key)
            past = [key for number in range(last - 1) for key in rounds[number]]
            store = self.open()
            eventually(lambda: not any(store.multi_get(past)), "past rounds are deleted")
            assert all(any(store.multi_get(rounds[number])) for number in (last - 1, last))
        finally:
            handler.leave()

    def _at_once(self, count: int, work: Callable[[RendezvousStore], None]) -> None:
        stores = [self.open() for _ in range(count)]
        barrier = threading.Barrier(count)

        def run(store: RendezvousStore) -> None:
            barrier.wait(BOUND)
            work(store)

        threads = [threading.Thread(target=run, args=(s,), daemon=True) for s in stores]
        for thread in threads:
            thread.start()
        eventually(lambda: not any(t.is_alive() for t in threads), "all threads have ended")
