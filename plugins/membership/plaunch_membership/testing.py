"""For tests of backends: a store in memory with faults, and access to a handler.

`MemoryStore` is the smallest example of a backend's store.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousConnectionError, RendezvousStateError

from plaunch_membership.store import RendezvousStore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from plaunch_membership.handler import DynamicRendezvousHandler
    from plaunch_membership.store import BatchedOperation, Connect

__all__ = ["MemoryBoard", "MemoryStore", "lost_nodes", "node_name", "wrap_connections"]


def wrap_connections(handler: DynamicRendezvousHandler, wrap: Callable[[Connect], Connect]) -> None:
    """Wrap the `connect` function of a handler that has not been used yet."""
    handler.job.threads.connect = wrap(handler.job.threads.connect)


def node_name(handler: DynamicRendezvousHandler) -> str:
    """Return the name of a handler's node in the store."""
    return handler.membership.me


def lost_nodes(handler: DynamicRendezvousHandler) -> Collection[str]:
    """Return the nodes that a handler's node counts as lost; only the leader knows all of them."""
    return list(handler.membership.peers.lost)


class MemoryBoard:
    """The data that connections share, with one lock, and a condition for each awaited key.

    Args:
        delay: the additional duration of each operation, in seconds; may be changed at any time.
        sleep: sleeps for that time.

    Attributes:
        sleepers: the number of connections that wait for a key.
    """

    def __init__(self, delay: float = 0.0, sleep: Callable[[float], None] = time.sleep) -> None:
        self.delay = delay
        self.pause = sleep
        self.sleepers = 0
        self.data: dict[str, bytes] = {}
        self.lock = threading.RLock()
        self._is_down = False
        self._waiting: dict[str, threading.Condition] = {}

    @property
    def down(self) -> bool:
        """Whether the store is unreachable. Setting it ends all waits."""
        return self._is_down

    @down.setter
    def down(self, is_down: bool) -> None:
        with self.lock:
            self._is_down = is_down
            self.wake(list(self._waiting))

    def connect(self) -> MemoryStore:
        """Open a connection; give this method to a handler as its `connect`."""
        store = MemoryStore(self)
        store.check()
        return store

    def keys(self) -> list[str]:
        """Return all keys, sorted."""
        with self.lock:
            return sorted(self.data)

    def wipe(self) -> None:
        """Delete all data, as a restarted store would."""
        with self.lock:
            self.data.clear()

    def write(self, items: Mapping[str, bytes]) -> None:
        """Write values and wake the threads that wait for them."""
        with self.lock:
            for key, value in items.items():
                if not value:
                    raise ValueError(f"an empty value for {key!r}")
                self.data[key] = value
            self.wake(items)

    def wake(self, keys: Iterable[str]) -> None:
        """Wake the threads that wait for one of `keys`; the caller holds the lock."""
        for key in keys:
            if key in self._waiting:
                self._waiting[key].notify_all()

    def sleep(self, key: str, timeout: float) -> None:
        """Release the lock until `wake`, or for `timeout` seconds."""
        self.sleepers += 1
        self._waiting.setdefault(key, threading.Condition(self.lock)).wait(timeout)
        self.sleepers -= 1


class MemoryStore(RendezvousStore):
    """One connection to a `MemoryBoard`.

    Attributes:
        operations: counts the calls by method name.
        bytes_read: the size of all values that it has returned, with the keys that were asked for.
        bytes_written: the size of all values that it has written, with their keys.
    """

    def __init__(self, board: MemoryBoard) -> None:
        self.operations: Counter[str] = Counter()
        self.bytes_read = self.bytes_written = 0
        self._board = board
        self._is_closed = False
        self._awaited = ""
        self._is_counted = False  # the current operation, of which others are parts

    def set(self, key: str, value: bytes) -> None:
        """Write `value`."""
        self._begin("set")
        with self._board.lock:
            self.check()
            self._write({key: value})

    def add(self, key: str, amount: int) -> int:
        """Add `amount`; the sum is kept as decimal digits."""
        self._begin("add")
        with self._board.lock:
            self.check()
            try:
                total = int(self._board.data.get(key, b"0")) + amount
            except ValueError:
                raise RendezvousStateError(
                    f"{key!r} holds something that is not a number"
                ) from None
            self._write({key: b"%d" % total})
            return total

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Write `desired` if `key` holds `expected`; return the value it has then."""
        self._begin("compare_set")
        with self._board.lock:
            self.check()
            if self._board.data.get(key) == expected:
                self._write({key: desired})
            return self._read(key)

    def multi_get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of all `keys` atomically."""
        self._begin("multi_get")
        with self._board.lock:
            self.check()
            return [self._read(key) for key in keys]

    def wait(self, key: str, timeout: float) -> bytes | None:
        """Return the value once there is one; a write, an outage or `close` wakes the wait."""
        self._begin("wait")
        deadline = time.monotonic() + timeout
        with self._board.lock:
            self._awaited = key
            while True:
                self.check()
                left = deadline - time.monotonic()
                if key in self._board.data or left <= 0:
                    return self._read(key)
                self._board.sleep(key, left)

    def append(self, log: str, value: bytes) -> int:
        """Append `value` to a log with one request."""
        with self._request("append"):
            return super().append(log, value)

    def wait_then_get(self, key: str, timeout: float, others: Sequence[str]) -> list[bytes | None]:
        """Wait for `key`, then read the others, with one request."""
        with self._request("wait"):
            return super().wait_then_get(key, timeout, others)

    def batch(self, operations: Sequence[BatchedOperation]) -> list[object]:
        """Carry out all operations with one request."""
        with self._request("batch"):
            return super().batch(operations)

    def delete(self, key: str) -> None:
        """Remove `key`."""
        self._begin("delete")
        with self._board.lock:
            self.check()
            self._board.data.pop(key, None)

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        """Write all `items` atomically."""
        self._begin("multi_set")
        with self._board.lock:
            self.check()
            self._write(items)

    def beat(self, key: str, value: bytes) -> None:
        """Write a heartbeat; the board has no leases."""
        self._begin("beat")
        with self._board.lock:
            self.check()
            self._write({key: value})

    def close(self) -> None:
        """Close the connection; waits and later operations fail."""
        with self._board.lock:
            self._is_closed = True
            self._board.wake([self._awaited])

    def check(self) -> None:
        """Raise `RendezvousConnectionError` if the connection is closed or the store is down."""
        if self._is_closed:
            raise RendezvousConnectionError("the connection to the memory store is closed")
        if self._board.down:
            raise RendezvousConnectionError("the memory store is down")

    def _read(self, key: str) -> bytes | None:
        value = self._board.data.get(key)
        self.bytes_read += len(key) + len(value or b"")
        return value

    def _write(self, items: Mapping[str, bytes]) -> None:
        self._board.write(items)
        self.bytes_written += sum(len(key) + len(value) for key, value in items.items())

    @contextlib.contextmanager
    def _request(self, operation: str) -> Iterator[None]:
        """Count what is done meanwhile as one operation."""
        self._begin(operation)
        before, self._is_counted = self._is_counted, True
        try:
            yield
        finally:
            self._is_counted = before

    def _begin(self, operation: str) -> None:
        if self._is_counted:
            return
        self.operations[operation] += 1
        if self._board.delay:
            self._board.pause(self._board.delay)
