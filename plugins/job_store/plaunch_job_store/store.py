"""The store of a job as one thread of an agent uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import RendezvousConnectionError, RendezvousStateError
from plaunch_membership import (
    Add,
    Append,
    CompareSet,
    MultiGet,
    RendezvousStore,
    Set,
    WriteHeartbeat,
)

from plaunch_job_store.frames import TOO_LARGE, Code, Operation, OperationFailed
from plaunch_job_store.limits import MAX_VALUE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch_membership import BatchedOperation

    from plaunch_job_store.client import StoreClient
    from plaunch_job_store.frames import Result

_BATCH = 256  # keys in one request
_WRITES = (Code.SET, Code.HOLD, Code.COMPARE_SET, Code.APPEND)


class JobStore(RendezvousStore):
    """The store as one thread of an agent uses it.

    Args:
        client: the connection, which other stores share.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._is_closed = False

    def set(self, key: str, value: bytes) -> None:
        """Write `value`."""
        self._one(Operation(Code.SET, key, value))

    def add(self, key: str, amount: int) -> int:
        """Add `amount`; the sum is kept as decimal digits."""
        return self._number(self._one(Operation(Code.ADD, key, amount=amount)))

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Write `desired` if `key` holds `expected`; return the value it has then."""
        return self._value(self._one(Operation(Code.COMPARE_SET, key, desired, expected)))

    def multi_get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of all `keys`, with as few requests as their sizes permit."""
        values: list[bytes | None] = []
        too_large = OperationFailed(TOO_LARGE)
        while len(values) < len(keys):
            batch = keys[len(values) : len(values) + _BATCH]
            results = self._call([Operation(Code.GET, key) for key in batch])
            # The first value fits into the reply in any case.
            fits = results.index(too_large, 1) if too_large in results[1:] else len(results)
            values += [self._value(self._checked(result)) for result in results[:fits]]
        return values

    def wait(self, key: str, timeout: float) -> bytes | None:
        """Return the value of `key` as soon as it has one; the server wakes this call."""
        results = self._call([Operation(Code.WAIT, key)], max(timeout, 0.0))
        return self._value(self._checked(results[0]))

    def wait_then_get(self, key: str, timeout: float, others: Sequence[str]) -> list[bytes | None]:
        """Wait for `key`, and read others when it has a value; with one request."""
        reads = [Operation(Code.GET, other) for other in others]
        first, *rest = self._call([Operation(Code.WAIT, key), *reads], max(timeout, 0.0))
        value = self._value(self._checked(first))
        if value is not None and OperationFailed(TOO_LARGE) in rest:
            return [value, *self.multi_get(others)]
        return [value, *(self._value(self._checked(result)) for result in rest)]

    def append(self, log: str, value: bytes) -> int:
        """Append `value` to a log at once; return its ticket."""
        return self._number(self._one(Operation(Code.APPEND, log, value)))

    def batch(self, operations: Sequence[BatchedOperation]) -> list[object]:
        """Carry out all operations at once, with one request."""
        translated = [_translate(operation) for operation in operations]
        results = iter(self._call([one for several in translated for one in several]))
        return [
            self._result(operation, [next(results) for _ in several])
            for operation, several in zip(operations, translated, strict=True)
        ]

    def delete(self, key: str) -> None:
        """Remove `key`."""
        self._one(Operation(Code.DELETE, key))

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        """Write all `items`; those of one request at once."""
        batch: list[Operation] = []
        size = 0
        for key, value in items.items():
            if batch and (len(batch) == _BATCH or size + len(value) > MAX_VALUE):
                self._all(batch)
                batch, size = [], 0
            batch.append(Operation(Code.SET, key, value))
            size += len(value) + len(key)
        if batch:
            self._all(batch)

    def beat(self, key: str, value: bytes) -> None:
        """Write `value`; the server deletes it if the session ends without a goodbye."""
        self._one(Operation(Code.HOLD, key, value))

    def count_sessions(self) -> int:
        """Return the number of clients that the server has, this one included."""
        count = self._one(Operation(Code.COUNT_SESSIONS, "sessions"))
        return count if isinstance(count, int) else 0

    def close(self) -> None:
        """End the calls of this store, also on other threads; the connection remains."""
        self._is_closed = True
        self._client.fail(self)

    # --- calls ------------------------------------------------------------------------------------

    def _call(self, operations: Sequence[Operation], wait: float | None = None) -> list[Result]:
        for operation in operations:
            if operation.code in _WRITES and not operation.value:
                raise ValueError(f"an empty value for {operation.key!r}")
        if self._is_closed:
            raise RendezvousConnectionError(
                f"the connection to the rendezvous store at {self._client.endpoint} is closed"
            )
        results = self._client.call(self, operations, wait)
        if len(results) != len(operations):
            raise RendezvousConnectionError(
                f"the rendezvous store at {self._client.endpoint} has answered {len(results)} of "
                f"{len(operations)} operations"
            )
        return results

    def _one(self, operation: Operation) -> Result:
        return self._checked(self._call([operation])[0])

    def _all(self, operations: Sequence[Operation]) -> None:
        for result in self._call(operations):
            self._checked(result)

    def _checked(self, result: Result) -> Result:
        if isinstance(result, OperationFailed):
            raise RendezvousStateError(
                f"the rendezvous store at {self._client.endpoint}: {result.reason}"
            )
        return result

    def _result(self, operation: BatchedOperation, results: Sequence[Result]) -> object:
        """Return what an operation of a batch would have returned alone."""
        checked = [self._checked(result) for result in results]
        if isinstance(operation, MultiGet):
            return [self._value(result) for result in checked]
        if isinstance(operation, CompareSet):
            return self._value(checked[0])
        return self._number(checked[0]) if isinstance(operation, (Add, Append)) else None

    def _number(self, result: Result) -> int:
        if not isinstance(result, int):
            raise RendezvousConnectionError(f"the store has answered {result!r} for a number")
        return result

    def _value(self, result: Result) -> bytes | None:
        if isinstance(result, int):
            raise RendezvousConnectionError(f"the store has answered {result} for a value")
        return result if isinstance(result, bytes) else None


def _translate(operation: BatchedOperation) -> list[Operation]:
    """Return the operations of the protocol that do the same."""
    if isinstance(operation, MultiGet):
        return [Operation(Code.GET, key) for key in operation.keys]
    if isinstance(operation, CompareSet):
        return [Operation(Code.COMPARE_SET, operation.key, operation.desired, operation.expected)]
    if isinstance(operation, Add):
        return [Operation(Code.ADD, operation.key, amount=operation.amount)]
    if isinstance(operation, Append):
        return [Operation(Code.APPEND, operation.log, operation.value)]
    if isinstance(operation, (Set, WriteHeartbeat)):
        code = Code.HOLD if isinstance(operation, WriteHeartbeat) else Code.SET
        return [Operation(code, operation.key, operation.value)]
    raise TypeError(f"{operation!r} cannot be part of a batch")
