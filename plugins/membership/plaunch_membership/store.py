"""The contract of a store: what a backend must provide for the membership.

A handful of atomic operations on keys, and one wait. `plaunch_membership.testing.MemoryStore` is
the smallest example; `DynamicRendezvousHandler` makes a whole backend of any store.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence


class RendezvousStore(abc.ABC):
    """One connection to a store that the nodes of a job share.

    Each object is used by one thread at a time; a node opens two, and its leader three. Keys are
    text of printable ASCII with slashes, values are bytes, empty ones excluded.

    Every method but `wait` returns as soon as the store has answered. All raise
    `RendezvousConnectionError` if the store cannot be reached or does not answer in time; the
    caller then closes the object, and repeats the operation over a new one. An operation that
    failed may have happened all the same.
    """

    @abc.abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Write `value` under `key`."""

    @abc.abstractmethod
    def add(self, key: str, amount: int) -> int:
        """Add `amount` to the counter under `key`, which starts at 0, and return the sum.

        If another program has written something there that is not a number, it raises
        `RendezvousStateError`, or `RendezvousConnectionError` if it does not know: then the key is
        read, and what is there is named.
        """

    @abc.abstractmethod
    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Write `desired` if `key` holds `expected` (None: nothing); return what it holds then.

        So the result equals `desired` if it was written. It is None only if nothing is there and
        something was expected.
        """

    @abc.abstractmethod
    def multi_get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values under `keys`; None for each that holds nothing."""

    @abc.abstractmethod
    def wait(self, key: str, timeout: float) -> bytes | None:
        """Return the value under `key` as soon as there is one; None after `timeout` seconds.

        A wait for a key that exists takes no longer than any other operation. Many connections may
        wait for the same key, and all of them are woken within milliseconds of the write.
        """

    @abc.abstractmethod
    def delete(self, key: str) -> None:
        """Remove `key`; nothing happens if it holds nothing. Only for keys that no node reads."""

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        """Write many values; it need not be atomic. The default writes them one by one."""
        for key, value in items.items():
            self.set(key, value)

    def beat(self, key: str, value: bytes) -> float | None:
        """Send a heartbeat: write `value`, which differs each time; the default is `set`.

        A backend that has leases lets the key vanish when the process is gone. Whoever watches
        takes that for a reason to suspect it, not as a proof. If so, it returns for how many
        seconds the key stays after the last call. From then on the node gives the same value again
        and again, which need not be written as long as it is there: a renewal of the lease is
        enough. When the lease has ended, the value must be written again.

        Returns:
            None if the key stays for ever: then nothing but another value is a heartbeat.
        """
        self.set(key, value)
        return None

    def close(self) -> None:  # noqa: B027 - most stores have nothing to release
        """Release the connection; may be called twice, and by another thread."""


Connect = Callable[[], RendezvousStore]
