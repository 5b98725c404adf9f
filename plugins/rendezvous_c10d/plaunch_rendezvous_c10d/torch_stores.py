"""torch's stores as stores of the membership library.

torch's timeouts limit little: most operations wait for an answer as long as the connection exists.
A `TcpStore` therefore limits each receive and send on the connection's own socket. `close` shuts
that socket down, which ends a call on another thread.
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
from plaunch.texts import printable
from plaunch_membership import RendezvousStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# torch treats a missing key as if it held the expected value, and writes nothing. So a
# compare-and-set of a value that no key ever holds, with the same new value, reads a key without
# waiting.
_NOTHING = b"\0"
_FEW = 3  # this many single reads cost no more than the three round trips of torch's multi_get
_FIRST_POLL, _LAST_POLL = 0.01, 0.05  # seconds between two reads of a file


class _TorchStore(RendezvousStore):
    """The common part of both stores.

    Args:
        store: torch's store object, used by this connection only.
        endpoint: the endpoint of the store, for messages.
        read_timeout: seconds that torch may wait for keys that exist.
    """

    def __init__(self, store: Any, endpoint: str, read_timeout: float) -> None:
        self._store = store
        self._endpoint = endpoint
        self._lock = threading.Lock()
        store.set_timeout(timedelta(seconds=read_timeout))

    def set(self, key: str, value: bytes) -> None:
        """Write `value`."""
        _refuse_reserved(key, value)
        self._call("set", lambda store: store.set(key, value))

    def add(self, key: str, amount: int) -> int:
        """Add `amount`; the sum is kept as decimal digits."""
        return int(self._call("add", lambda store: store.add(key, amount)))

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Write `desired` if `key` holds `expected`; return the value it has then."""
        _refuse_reserved(key, desired)
        if expected is not None:
            _refuse_reserved(key, expected)
        held: bytes = self._call(
            "compare_set", lambda store: store.compare_set(key, expected or b"", desired)
        )
        if held != expected:
            return held
        # torch returns the expected value if the key has no value, and also if a value is replaced
        # by the same one.
        return self._peek(key) if desired == expected else None

    def multi_get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of all `keys`, in two requests if none is missing.

        torch would wait for a missing key, so a first request checks whether one is. If so, the
        halves are read separately.
        """
        if len(keys) <= _FEW:
            return [self._peek(key) for key in keys]
        wanted = list(keys)
        if self._call("check", lambda store: store.check(wanted)):
            found = self._call("multi_get", lambda store: store.multi_get(wanted))
            return [bytes(value) for value in found]
        middle = len(wanted) // 2
        return self.multi_get(wanted[:middle]) + self.multi_get(wanted[middle:])

    def delete(self, key: str) -> None:
        """Remove `key`."""
        self._call("delete", lambda store: store.delete_key(key))

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        """Write all `items` in one request."""
        for key, value in items.items():
            _refuse_reserved(key, value)
        if items:
            keys, values = list(items), list(items.values())
            self._call("multi_set", lambda store: store.multi_set(keys, values))

    def close(self) -> None:
        """Release torch's object."""
        with self._lock:
            self._store = None

    def _peek(self, key: str) -> bytes | None:
        """Return the value of `key`, or None, without waiting."""
        held = self._call("read", lambda store: store.compare_set(key, _NOTHING, _NOTHING))
        return None if held == _NOTHING else bytes(held)

    def _call(self, operation: str, call: Callable[[Any], Any]) -> Any:
        with self._lock:
            store = self._store
        if store is None:
            raise RendezvousConnectionError(
                f"{operation} on rendezvous store {self._endpoint!r} over a closed connection",
                names_store=True,
            )
        try:
            return call(store)
        except (RuntimeError, OSError) as error:  # torch's own exceptions are RuntimeErrors
            raise RendezvousConnectionError(
                f"{operation} on rendezvous store {self._endpoint!r} failed: {first_line(error)}",
                names_store=True,
            ) from error


class TcpStore(_TorchStore):
    """A connection to torch's TCPStore.

    An operation ends after at most `read_timeout` seconds, and a wait that long after its own
    timeout, even if the host does not answer. There is no such limit if the `repr` of torch's store
    does not contain its socket; the caller must then be ready to abandon the thread.
    """

    def __init__(self, store: Any, endpoint: str, read_timeout: float) -> None:
        super().__init__(store, endpoint, read_timeout)
        # A wait is split into slices of half the limit, so that it does not run into the limit.
        self._slice = read_timeout / 2
        self._descriptor = _descriptor_of(store)
        if self._descriptor is not None:
            seconds, fraction = divmod(read_timeout, 1)
            bound = struct.pack("ll", int(seconds), int(fraction * 1e6))
            with socket.socket(fileno=os.dup(self._descriptor)) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)

    def set(self, key: str, value: bytes) -> None:
        """Write `value`, and wait until it has arrived.

        torch sends it without waiting for an answer, and the first write to a dead host is lost
        without an error. The following read makes it a round trip.
        """
        super().set(key, value)
        self._peek(key)

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        """Write all `items`, and wait until they have arrived, as in `set`."""
        super().multi_set(items)
        for key in items:
            self._peek(key)
            break

    def wait(self, key: str, timeout: float) -> bytes | None:
        """Return the value of `key` as soon as it has one; the host wakes this call."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            # For torch, 0 means no limit; it counts in milliseconds.
            span = timedelta(seconds=max(min(left, self._slice), 0.001))
            # `_peek` also wakes all clients that wait for the key, and they would wake each other
            # forever. `_has` does not.
            if self._call("wait", functools.partial(_wait_once, key, span)) and self._has(key):
                return self._peek(key)
        return self._peek(key) if self._has(key) else None

    def _has(self, key: str) -> bool:
        return bool(self._call("check", lambda store: store.check([key])))

    def close(self) -> None:
        """Release torch's object; a call on another thread ends with an error."""
        with self._lock:
            store, self._store = self._store, None
        # The descriptor belongs to torch while the object exists.
        if store is not None and self._descriptor is not None:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as s:
                s.shutdown(socket.SHUT_RDWR)


class FileStore(_TorchStore):
    """torch's FileStore: a file that all nodes can access, locked for each operation.

    A wait reads it repeatedly. The file only grows.
    """

    def wait(self, key: str, timeout: float) -> bytes | None:
        """Return the value of `key` as soon as it has one, within hundredths of a second."""
        # torch's own wait overshoots its timeout by a second, and cannot be ended by `close`.
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
    """Return the message of torch's exception, without its C++ stack."""
    return printable(next(iter(str(error).splitlines()), "") or type(error).__name__)


def _refuse_reserved(key: str, value: bytes) -> None:
    if not value or value == _NOTHING:
        raise ValueError(
            f"the value for {key!r} is {value!r}, which torch's stores cannot distinguish"
        )


def _wait_once(key: str, span: timedelta, store: Any) -> bool:
    import torch.distributed

    try:
        store.wait([key], span)
    except torch.distributed.DistNetworkError:
        raise
    except torch.distributed.DistStoreError:
        return False
    return True


def _descriptor_of(store: Any) -> int | None:
    """Return the descriptor of the connection; None if torch does not show it."""
    found = re.search(r"\bfd=(\d+)", repr(store))
    if found is None:
        return None
    descriptor = int(found[1])
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as sock:
        if sock.getpeername()[1] == store.port:
            return descriptor
    return None
