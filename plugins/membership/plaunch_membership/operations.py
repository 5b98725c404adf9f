"""The store operations that a routine yields, one class for each.

A routine is a generator that yields operations and receives their results. It does no I/O itself,
so the same routine runs on a thread over a real store (`runner.py`), and step by step in a test
that controls time, order and faults.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from plaunch.errors import RendezvousStateError

from plaunch_membership.keys import tickets

if TYPE_CHECKING:
    from plaunch_membership.store import BatchedOperation, RendezvousStore

_NUMBER = re.compile(rb"-?[0-9]{1,19}")

T = TypeVar("T")


@dataclass(frozen=True)
class Set:
    """Write a value."""

    key: str
    value: bytes

    def run(self, store: RendezvousStore) -> None:
        """Call the store."""
        store.set(self.key, self.value)


@dataclass(frozen=True)
class Add:
    """Add to a counter; the result is the sum. An amount of 0 reads it."""

    key: str
    amount: int = 1

    def run(self, store: RendezvousStore) -> int:
        """Call the store."""
        return store.add(self.key, self.amount)

    def check(self, store: RendezvousStore) -> None:
        """Check that the counter is a number, after an addition failed for an unknown reason.

        Raises:
            RendezvousStateError: it is not a number, so every addition would fail.
        """
        (held,) = store.multi_get([self.key])
        if held is not None and not _NUMBER.fullmatch(held):
            raise RendezvousStateError(
                f"the counter under {self.key!r} holds {held[:40]!r}, which is not a number; "
                "something else has written it"
            )


@dataclass(frozen=True)
class Append:
    """Append a record to a log; the result is its ticket.

    It may be carried out twice, and the record then has two tickets.
    """

    log: str
    value: bytes

    def run(self, store: RendezvousStore) -> int:
        """Call the store."""
        return store.append(self.log, self.value)

    def check(self, store: RendezvousStore) -> None:
        """Check the counter of the log; see `Add.check`."""
        Add(tickets(self.log)).check(store)


@dataclass(frozen=True)
class CompareSet:
    """Write a value if the key holds the expected one; the result is the value it has then."""

    key: str
    expected: bytes | None
    desired: bytes

    def run(self, store: RendezvousStore) -> bytes | None:
        """Call the store."""
        return store.compare_set(self.key, self.expected, self.desired)


@dataclass(frozen=True)
class MultiGet:
    """Read many values; the result has None for missing keys."""

    keys: Sequence[str]

    def run(self, store: RendezvousStore) -> list[bytes | None]:
        """Call the store."""
        return store.multi_get(self.keys) if self.keys else []


@dataclass(frozen=True)
class MultiSet:
    """Write many values."""

    items: Mapping[str, bytes]

    def run(self, store: RendezvousStore) -> None:
        """Call the store."""
        if self.items:
            store.multi_set(self.items)


@dataclass(frozen=True)
class Wait:
    """Wait up to `timeout` seconds for a key; the result is its value, or None."""

    key: str
    timeout: float

    def run(self, store: RendezvousStore) -> bytes | None:
        """Call the store."""
        return store.wait(self.key, self.timeout)


@dataclass(frozen=True)
class WaitThenGet(Wait):
    """Wait for a key, and read others after it has got its value.

    The result has that value, and those of the others; all are None if the time is over.
    """

    others: Sequence[str] = ()

    def run(self, store: RendezvousStore) -> list[bytes | None]:  # type: ignore[override]
        """Call the store."""
        return store.wait_then_get(self.key, self.timeout, self.others)


@dataclass(frozen=True)
class Delete:
    """Remove a key."""

    key: str

    def run(self, store: RendezvousStore) -> None:
        """Call the store."""
        store.delete(self.key)


@dataclass(frozen=True)
class WriteHeartbeat:
    """Write a heartbeat; the result is the seconds until its lease expires, if it has one."""

    key: str
    value: bytes

    def run(self, store: RendezvousStore) -> float | None:
        """Call the store."""
        return store.beat(self.key, self.value)


@dataclass(frozen=True)
class Sleep:
    """Sleep for some seconds, or until the runner is nudged."""

    seconds: float


@dataclass(frozen=True)
class Batch:
    """Carry out several operations, one after the other; the result has theirs.

    Other nodes may see the effects of some of them, and after a lost answer, all are carried out
    again. So they must be independent of each other's results.
    """

    operations: Sequence[BatchedOperation]

    def run(self, store: RendezvousStore) -> list[Any]:
        """Call the store."""
        return store.batch(self.operations)

    def check(self, store: RendezvousStore) -> None:
        """Check the counters; see `Add.check`."""
        for operation in self.operations:
            if isinstance(operation, (Add, Append)):
                operation.check(store)


Counting = Add | Append | Batch  # the operations with a `check`
StoreOperation = (
    Set | Add | Append | CompareSet | MultiGet | MultiSet | Wait | Delete | WriteHeartbeat | Batch
)
Operation = StoreOperation | Sleep
Routine = Generator[Operation, Any, T]
