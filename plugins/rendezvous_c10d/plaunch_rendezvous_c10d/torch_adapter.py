"""Lets programs use the store of the job through the API of torch's stores."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from plaunch.errors import RendezvousStateError
from plaunch_job_store.frames import Code, Operation, OperationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch_job_store.client import StoreClient
    from plaunch_job_store.frames import Result

_Value = bytes | str


def create_torch_store(client: Callable[[], StoreClient], timeout: float) -> Any:
    """Return a `StoreMethods` that torch accepts as a store; imports torch.

    Args:
        client: returns the connection.
        timeout: the default timeout of waits, in seconds; `set_timeout` of torch changes it.
    """
    from torch.distributed import Store

    store = type("JobStore", (StoreMethods, Store), {})(client)  # torch calls its methods
    store.set_timeout(timedelta(seconds=timeout))
    return store


class StoreMethods:
    """The methods of torch's stores, over the store of the job. Values may be any bytes.

    As torch's own stores do, `get` and `wait` wait for missing keys, and raise `DistStoreError`
    after the timeout.

    Args:
        client: returns the connection.
    """

    timeout: timedelta  # torch's

    def __init__(self, client: Callable[[], StoreClient]) -> None:
        super().__init__()
        self._client = client

    def set(self, key: str, value: _Value) -> None:
        """Write `value`."""
        self._one(Operation(Code.SET, quote(key), _encode(value)))

    def get(self, key: str) -> bytes:
        """Return the value of `key`, once it has one."""
        return self._await(key, self.timeout.total_seconds())

    def add(self, key: str, amount: int) -> int:
        """Add `amount` to the number under `key`, and return the sum."""
        result = self._one(Operation(Code.ADD, quote(key), amount=amount))
        return result if isinstance(result, int) else 0

    def compare_set(self, key: str, expected: _Value, desired: _Value) -> bytes:
        """Write `desired` if `key` holds `expected`, or is missing and `expected` is empty.

        Returns:
            The value that it has then; `expected` if it is missing.
        """
        expected = _encode(expected)
        name = quote(key)
        (held,) = self._call([Operation(Code.GET, name)])
        while True:
            if held is None and expected:
                return expected
            if held is not None and held != expected:
                return held if isinstance(held, bytes) else b""
            found = self._one(Operation(Code.COMPARE_SET, name, _encode(desired), held))
            if found == _encode(desired):
                return _encode(desired)
            held = found

    def delete_key(self, key: str) -> bool:
        """Remove `key`; whether it existed."""
        results = self._call([Operation(code, quote(key)) for code in (Code.GET, Code.DELETE)])
        return results[0] is not None

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all `keys` exist."""
        return None not in self._call([Operation(Code.GET, quote(key)) for key in keys])

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all `keys` exist."""
        deadline = time.monotonic() + (timeout or self.timeout).total_seconds()
        for key in keys:
            self._await(key, max(deadline - time.monotonic(), 0.0))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of all `keys`, once they have one."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[_Value]) -> None:
        """Write many values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Whether it has `multi_get` and `multi_set`, but it lacks `append` and queues."""
        return False

    def _await(self, key: str, seconds: float) -> bytes:
        (value,) = self._call([Operation(Code.WAIT, quote(key))], seconds)
        if not isinstance(value, bytes):
            from torch.distributed import DistStoreError

            raise DistStoreError(
                f"wait timeout after {seconds * 1000:.0f} ms, key {key!r} of the store of the round"
            )
        return value

    def _one(self, operation: Operation) -> Result:
        return self._call([operation])[0]

    def _call(self, operations: Sequence[Operation], wait: float | None = None) -> list[Result]:
        client = self._client()
        results = client.call(self, operations, wait)
        for result in results:
            if isinstance(result, OperationFailed):
                raise RendezvousStateError(
                    f"the rendezvous store at {client.endpoint}: {result.reason}"
                )
        return results


def _encode(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
