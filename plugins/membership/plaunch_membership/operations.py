"""The operations that a routine asks of the store, one object for each.

A routine is a generator that yields operations and is sent their results. It does no input or
output itself, so the same routine runs on a thread over a real store (`runner.py`), and step by
step in a test that decides about time, order and accidents.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from plaunch.errors import RendezvousStateError

if TYPE_CHECKING:
    from plaunch_membership.store import RendezvousStore

_NUMBER = re.compile(rb"-?[0-9]{1,19}")

T = TypeVar("T")


@dataclass(frozen=True)
class Set:
    """Write a value."""

    key: str
    value: bytes

    def run(self, store: RendezvousStore) -> None:
        """Do it."""
        store.set(self.key, self.value)


@dataclass(frozen=True)
class Add:
    """Add to a counter; the result is the sum. An amount of 0 reads it."""

    key: str
    amount: int = 1

    def run(self, store: RendezvousStore) -> int:
        """Do it."""
        return store.add(self.key, self.amount)

    def check(self, store: RendezvousStore) -> None:
        """See whether there is a number to add to; for when it fails, and it is not known why.

        Raises:
            RendezvousStateError: there is something else, which would make it fail for ever.
        """
        (held,) = store.multi_get([self.key])
        if held is not None and not _NUMBER.fullmatch(held):
            raise RendezvousStateError(
                f"the counter under {self.key!r} holds {held[:40]!r}, which is not a number; "
                "something else has written it"
            )


@dataclass(frozen=True)
class CompareSet:
    """Write a value if the key holds what is expected; the result is what it holds then."""

    key: str
    expected: bytes | None
    desired: bytes

    def run(self, store: RendezvousStore) -> bytes | None:
        """Do it."""
        return store.compare_set(self.key, self.expected, self.desired)


@dataclass(frozen=True)
class MultiGet:
    """Read many values; the result has None for what is not there."""

    keys: Sequence[str]

    def run(self, store: RendezvousStore) -> list[bytes | None]:
        """Do it."""
        return store.multi_get(self.keys) if self.keys else []


@dataclass(frozen=True)
class MultiSet:
    """Write many values."""

    items: Mapping[str, bytes]

    def run(self, store: RendezvousStore) -> None:
        """Do it."""
        if self.items:
            store.multi_set(self.items)


@dataclass(frozen=True)
class Wait:
    """Wait for a key for at most `timeout` seconds; the result is its value, or None."""

    key: str
    timeout: float

    def run(self, store: RendezvousStore) -> bytes | None:
        """Do it."""
        return store.wait(self.key, self.timeout)


@dataclass(frozen=True)
class Delete:
    """Remove a key."""

    key: str

    def run(self, store: RendezvousStore) -> None:
        """Do it."""
        store.delete(self.key)


@dataclass(frozen=True)
class Beat:
    """Send a heartbeat; the result is for how many seconds it stays, or None: for ever."""

    key: str
    value: bytes

    def run(self, store: RendezvousStore) -> float | None:
        """Do it."""
        return store.beat(self.key, self.value)


@dataclass(frozen=True)
class Sleep:
    """Do nothing for so many seconds, or until the runner is nudged."""

    seconds: float


StoreOperation = Set | Add | CompareSet | MultiGet | MultiSet | Wait | Delete | Beat
Operation = StoreOperation | Sleep
Routine = Generator[Operation, Any, T]
