"""Intercepts the connections of a node to its store; cutting them makes the node look dead."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from plaunch.errors import RendezvousConnectionError
from plaunch_membership import RendezvousStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch_membership import Connect


class NodeDiedError(Exception):
    """The test has killed this node."""


class NodeConnections:
    """The connections of one node to its store.

    Args:
        connect: opens a connection to the store.

    Attributes:
        operations: the number of store operations so far, by name.
        dies_at: the number of the operation before which the node dies; None for never.
        keys: the keys that the node has written.
        garble: changes written values, given key and value; None changes nothing.
    """

    def __init__(self, connect: Connect) -> None:
        self.operations: Counter[str] = Counter()
        self.keys: set[str] = set()
        self.dies_at: int | None = None
        self.garble: Callable[[str, bytes], bytes] | None = None
        self._connect = connect
        self._lock = threading.Lock()
        self._is_cut = False
        self._opened: list[RendezvousStore] = []

    @property
    def is_cut(self) -> bool:
        """Whether the node is dead."""
        return self._is_cut

    def connect(self) -> RendezvousStore:
        """Open another connection of the node."""
        if self._is_cut:
            raise NodeDiedError
        store = self._connect()
        with self._lock:
            self._opened.append(store)
        return _InterceptedStore(self, store)

    def cut(self) -> None:
        """Kill the node, possibly in the middle of an operation; nothing more reaches the store."""
        with self._lock:
            self._is_cut = True
            opened, self._opened = self._opened, []
        for store in opened:
            with contextlib.suppress(RendezvousConnectionError):
                store.close()

    def run(self, name: str, operation: Callable[..., Any], *args: Any) -> Any:
        """Run one store operation, unless the node is dead."""
        with self._lock:
            self.operations[name] += 1
            is_last = self.dies_at is not None and self.operations.total() >= self.dies_at
        if is_last:
            self.cut()
        if self._is_cut:
            raise NodeDiedError
        try:
            return operation(*args)
        except RendezvousConnectionError:
            if self._is_cut:
                raise NodeDiedError from None
            raise

    def written(self, key: str, value: bytes) -> bytes:
        """Return the value that reaches the store."""
        self.keys.add(key)
        return value if self.garble is None else self.garble(key, value)


class _InterceptedStore(RendezvousStore):
    """A connection that can be cut and corrupted."""

    def __init__(self, wire: NodeConnections, store: RendezvousStore) -> None:
        self._wire = wire
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        self._wire.run("set", self._store.set, key, self._wire.written(key, value))

    def add(self, key: str, amount: int) -> int:
        return int(self._wire.run("add", self._store.add, key, amount))

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        written = self._wire.written(key, desired)
        held: bytes | None = self._wire.run(
            "compare_set", self._store.compare_set, key, expected, written
        )
        # A node that corrupts its writes sees its own value.
        return desired if held == written else held

    def multi_get(self, keys: Sequence[str]) -> list[bytes | None]:
        return list(self._wire.run("multi_get", self._store.multi_get, keys))

    def wait(self, key: str, timeout: float) -> bytes | None:
        value: bytes | None = self._wire.run("wait", self._store.wait, key, timeout)
        return value

    def delete(self, key: str) -> None:
        self._wire.run("delete", self._store.delete, key)

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        written = {key: self._wire.written(key, value) for key, value in items.items()}
        self._wire.run("multi_set", self._store.multi_set, written)

    def beat(self, key: str, value: bytes) -> float | None:
        written = self._wire.written(key, value)
        lease: float | None = self._wire.run("beat", self._store.beat, key, written)
        return lease

    def close(self) -> None:
        self._store.close()
