"""The contract of a store: what a backend must provide for the membership.

A store has a few atomic operations on keys, and one blocking wait.
`plaunch_membership.testing.MemoryStore` is the smallest example. `DynamicRendezvousHandler` turns
any store into a complete backend.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from plaunch.errors import RendezvousConnectionError

from plaunch_membership.keys import entry, tickets

if TYPE_CHECKING:
    from plaunch.rendezvous import Store


class BatchedOperation(Protocol):
    """One of the operations that may be part of a batch: `Set`, `Add`, `Append` and others."""

    def run(self, store: RendezvousStore) -> object:
        """Call the method of a store."""


class RendezvousStore(abc.ABC):
    """One connection to a store that the nodes of a job share.

    Each object is used by one thread at a time. A node opens two, its leader three. Keys are
    printable ASCII with slashes; values are non-empty bytes.

    Every method but `wait` returns as soon as the store has answered. All methods raise
    `RendezvousConnectionError` if the store cannot be reached or does not answer in time. The
    caller then closes the object and repeats the operation over a new connection, so an operation
    that failed may still have taken effect.
    """

    @abc.abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Write `value` under `key`."""

    @abc.abstractmethod
    def add(self, key: str, amount: int) -> int:
        """Add `amount` to the counter under `key`, which starts at 0, and return the sum.

        Raises:
            RendezvousStateError: the key holds a value that is not a number. A store that cannot
                distinguish this may raise `RendezvousConnectionError`; the caller then reads the
                key and reports its value.
        """

    @abc.abstractmethod
    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Write `desired` if `key` holds `expected` (None: no value), and return the current value.

        The result equals `desired` if and only if `desired` was written or was there already. It is
        None only if `expected` was given and the key has no value.
        """

    @abc.abstractmethod
    def multi_get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of `keys`; None for each key that has no value."""

    @abc.abstractmethod
    def wait(self, key: str, timeout: float) -> bytes | None:
        """Return the value of `key` as soon as it has one, or None after `timeout` seconds.

        If the key has a value already, this takes no longer than any other operation. Many
        connections may wait for the same key; a write wakes all of them within milliseconds.
        """

    def append(self, log: str, value: bytes) -> int:
        """Append `value` to a log, and return its ticket: the first one is 1.

        A log is the counter `{log}/tickets` and the values `{log}/1`, `{log}/2` and so on. The
        default adds 1 to the counter, and then sets the value.
        """
        ticket = self.add(tickets(log), 1)
        self.set(entry(log, ticket), value)
        return ticket

    def wait_then_get(self, key: str, timeout: float, others: Sequence[str]) -> list[bytes | None]:
        """Wait as `wait` does, then read other keys; return that value, and those of the others.

        All are None after `timeout` seconds. The default calls `wait` and `multi_get`.
        """
        value = self.wait(key, timeout)
        return [value, *([None] * len(others) if value is None else self.multi_get(others))]

    def batch(self, operations: Sequence[BatchedOperation]) -> list[object]:
        """Carry out operations in this order, and return their results.

        The default runs one after the other. A store that can do so sends them with one request.
        If one fails, it is undefined which others have been carried out.
        """
        return [operation.run(self) for operation in operations]

    @abc.abstractmethod
    def delete(self, key: str) -> None:
        """Remove `key`, if it exists. Only called for keys that no node reads any more."""

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        """Write many values, not necessarily atomically. The default calls `set` for each."""
        for key, value in items.items():
            self.set(key, value)

    def beat(self, key: str, value: bytes) -> float | None:
        """Send a heartbeat: write `value`, which differs each time. The default calls `set`.

        A backend with leases removes the key when the process is gone. Observers treat a missing
        heartbeat as a suspicion, not as proof. Such a backend returns the seconds that the key
        outlives the last call. From then on the node passes the same value each time, and renewing
        the lease is enough while the key exists. After the lease has expired, the value must be
        written again.

        Returns:
            None if the key has no lease; then only a changed value counts as a heartbeat.
        """
        self.set(key, value)
        return None

    def close(self) -> None:  # noqa: B027 - a store of tests may have nothing to release
        """Close the connection: a wait ends, and operations raise `RendezvousConnectionError`.

        May be called twice, and from another thread. The default does nothing.
        """


class StoreNotListeningError(RendezvousConnectionError):
    """The host of the store refuses connections: nothing listens at its port.

    It may start again, but no node waits for that as long as for a host that does not answer.
    """


Connect = Callable[[], RendezvousStore]


@dataclass(frozen=True)
class StoreAccess:
    """How a node reaches the store of its job, and what the store needs from it.

    Args:
        connect: opens another connection to the store: on any thread, also after an outage. It
            raises `RendezvousConnectionError` after about five seconds.
        address: the address at which other nodes reach this one; workers use that of rank 0.
        endpoint: the endpoint of the store, for messages; by default that in the parameters.
        is_host: whether this process hosts the store; a function if that is only known once it has
            connected. It then stays until the others know how the job ended, and gets rank 0 unless
            that is given to another node or was another node's.
        has_guests: whether other processes are connected to the store that this one hosts. If so,
            it stays up to `close_timeout` for nodes that do not know yet how the job ended, and
            otherwise for five seconds.
        release: called once, when the store is no longer needed.
        open_store: opens torch's store under a prefix, for programs that use the store of a round.
        outlives_job: whether the store exists before and after the job.
        subscribe: registers a function that is called, on any thread, when the store has noticed
            that a node is gone, when this node may have lost its heartbeat, and when this node has
            lost the store. Such a store deletes a heartbeat if its process is gone, and only then.
        has_lost_data: whether the store that this node is connected to has lost data that it once
            had. The first round then begins when the former members are back, or count as lost.
    """

    connect: Connect
    address: str
    endpoint: str = ""
    is_host: bool | Callable[[], bool] = False
    has_guests: Callable[[], bool] = lambda: False
    release: Callable[[], None] = lambda: None
    open_store: Callable[[str], Store] | None = None
    outlives_job: bool = False
    subscribe: Callable[[Callable[[], None]], None] | None = None
    has_lost_data: Callable[[], bool] = lambda: False

    def hosts_store(self) -> bool:
        """Whether this process hosts the store."""
        return self.is_host() if callable(self.is_host) else self.is_host
