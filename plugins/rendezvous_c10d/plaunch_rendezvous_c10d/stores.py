"""torch's stores, under the protocol of the membership library.

What torch calls a time-out bounds little: most operations wait for an answer as long as the
connection lives. A `TcpStore` therefore bounds each receive and send on the connection's own
socket, and `close` shuts that socket down, which ends a call that another thread is in.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import struct
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from plaunch.errors import RendezvousConnectionError
from plaunch_membership import RendezvousStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# torch compares a missing key as if it held what is expected, and writes nothing. So comparing with
# something that no key ever holds, and setting the same, reads a key without waiting for it.
_NOTHING = b"\0"
_FEW = 3  # so many single reads cost no more than the three round trips of torch's multi_get
_FIRST_POLL, _LAST_POLL = 0.01, 0.05  # seconds between looks into a file


class _TorchStore(RendezvousStore):
    """The common part of both stores.

    Args:
        store: torch's store object, for this connection alone.
        endpoint: how messages name the store.
        read_timeout: seconds that torch may wait for keys it was told are there.
    """

    def __init__(self, store: Any, endpoint: str, read_timeout: float) -> None:
        self._store = store
        self._endpoint = endpoint
        self._lock = threading.Lock()
        store.set_timeout(timedelta(seconds=read_timeout))

    def set(self, key: str, value: bytes) -> None:
        """Write `value`."""
        _refuse_reserved(key, value)
        self._ask("set", lambda store: store.set(key, value))

    def add(self, key: str, amount: int) -> int:
        """Add `amount`; the sum is kept as decimal digits."""
        return int(self._ask("add", lambda store: store.add(key, amount)))

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Write `desired` if `key` holds `expected`; return what it holds then."""
        _refuse_reserved(key, desired)
        if expected is not None:
            _refuse_reserved(key, expected)
        held: bytes = self._ask(
            "compare_set", lambda store: store.compare_set(key, expected or b"", desired)
        )
        if held != expected:
            return held
        # torch answers with what was expected if the key holds nothing, and also, of course, if
        # it was told to replace a value by itself.
        return self._peek(key) if desired == expected else None

    def multi_get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of all `keys`; two requests if there are values under all of them.

        torch would wait for a key that is missing, so it is asked first whether one is. If so, the
        halves are read each by itself.
        """
        if len(keys) <= _FEW:
            return [self._peek(key) for key in keys]
        asked = list(keys)
        if self._ask("check", lambda store: store.check(asked)):
            found = self._ask("multi_get", lambda store: store.multi_get(asked))
            return [bytes(value) for value in found]
        middle = len(asked) // 2
        return self.multi_get(asked[:middle]) + self.multi_get(asked[middle:])

    def delete(self, key: str) -> None:
        """Remove `key`."""
        self._ask("delete", lambda store: store.delete_key(key))

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        """Write all `items` in one request."""
        for key, value in items.items():
            _refuse_reserved(key, value)
        if items:
            keys, values = list(items), list(items.values())
            self._ask("multi_set", lambda store: store.multi_set(keys, values))

    def close(self) -> None:
        """Let go of torch's object."""
        with self._lock:
            self._store = None

    def _peek(self, key: str) -> bytes | None:
        """The value under `key`, or None, without waiting for one."""
        held = self._ask("read", lambda store: store.compare_set(key, _NOTHING, _NOTHING))
        return None if held == _NOTHING else bytes(held)

    def _ask(self, operation: str, call: Callable[[Any], Any]) -> Any:
        with self._lock:
            store = self._store
        if store is None:
            raise RendezvousConnectionError(
                f"{operation} on rendezvous store {self._endpoint!r} over a closed connection"
            )
        try:
            return call(store)
        except (RuntimeError, OSError) as error:  # torch's own exceptions are RuntimeErrors
            raise RendezvousConnectionError(
                f"{operation} on rendezvous store {self._endpoint!r} failed: {first_line(error)}"
            ) from error


class TcpStore(_TorchStore):
    """A connection to torch's TCPStore.

    An operation ends after at most `read_timeout` seconds, a wait that much after its own
    time-out, also if the host does not answer any more. Where the `repr` of torch's store does not
    tell its socket there is no such bound, and the caller must be ready to abandon the thread.
    """

    def __init__(self, store: Any, endpoint: str, read_timeout: float) -> None:
        super().__init__(store, endpoint, read_timeout)
        # A wait is cut into slices of half the bound, so that its silence is not taken for death.
        self._slice = read_timeout / 2
        self._descriptor = _descriptor_of(store)
        if self._descriptor is not None:
            seconds, fraction = divmod(read_timeout, 1)
            bound = struct.pack("ll", int(seconds), int(fraction * 1e6))
            with socket.socket(fileno=os.dup(self._descriptor)) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)

    def set(self, key: str, value: bytes) -> None:
        """Write `value`, and know that it has arrived.

        torch sends it without waiting for an answer, and the first one that is sent to a host that
        has died is lost without an error. The read behind it makes it one round trip.
        """
        super().set(key, value)
        self._peek(key)

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        """Write all `items`, and know that they have arrived, as in `set`."""
        super().multi_set(items)
        for key in items:
            self._peek(key)
            break

    def wait(self, key: str, timeout: float) -> bytes | None:
        """The value under `key` as soon as there is one; the host wakes us."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            # torch takes 0 for "without end", and counts in milliseconds.
            span = timedelta(seconds=max(min(left, self._slice), 0.001))
            # The host wakes everybody who waits for a key also when somebody only looks for it with
            # `_peek`. So we look in another way, or all who wait would wake each other for ever.
            if self._ask("wait", functools.partial(_has_come, key, span)) and self._has(key):
                return self._peek(key)
        return self._peek(key) if self._has(key) else None

    def _has(self, key: str) -> bool:
        return bool(self._ask("check", lambda store: store.check([key])))

    def close(self) -> None:
        """Let go of torch's object; a call that another thread is in ends with an error."""
        with self._lock:
            store, self._store = self._store, None
        # The descriptor is torch's as long as the object lives.
        if store is not None and self._descriptor is not None:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as s:
                s.shutdown(socket.SHUT_RDWR)


class FileStore(_TorchStore):
    """torch's FileStore: a file that all nodes see, under a lock for each operation.

    It is read repeatedly while there is a waiter. The file only grows.
    """

    def wait(self, key: str, timeout: float) -> bytes | None:
        """The value under `key`, within hundredths of a second of the write."""
        # torch's own wait overshoots its time-out by a second, and cannot be ended by `close`.
        deadline = time.monotonic() + timeout
        pause = _FIRST_POLL
        while True:
            value = self._peek(key)
            left = deadline - time.monotonic()
            if value is not None or left <= 0:
                return value
            time.sleep(min(pause, left))
            pause = min(pause * 1.1, _LAST_POLL)


def first_line(error: BaseException) -> str:
    """The message of torch's exception, without its C++ stack."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _refuse_reserved(key: str, value: bytes) -> None:
    if not value or value == _NOTHING:
        raise ValueError(
            f"the value for {key!r} is {value!r}, which torch's stores cannot distinguish"
        )


def _has_come(key: str, span: timedelta, store: Any) -> bool:
    import torch.distributed

    try:
        store.wait([key], span)
    except torch.distributed.DistNetworkError:
        raise
    except torch.distributed.DistStoreError:
        return False
    return True


def _descriptor_of(store: Any) -> int | None:
    """The descriptor of the connection; None if torch does not tell it."""
    found = re.search(r"\bfd=(\d+)", repr(store))
    if found is None:
        return None
    descriptor = int(found[1])
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as sock:
        if sock.getpeername()[1] == store.port:
            return descriptor
    return None
