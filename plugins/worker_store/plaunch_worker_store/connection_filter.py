"""Filters the connections to a store that cannot be served: clients of torch, and others."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

# The first bytes of every client of TCPStore: an operation's number, and a magic number.
_GREETING = b"\0" + (0x3C85F7CE).to_bytes(4, "little")
_GREETING_TIMEOUT = 10.0  # seconds for a client that sends nothing
_CHECK_INTERVAL = 0.1  # seconds between two checks of received data
_MAX_CLIENTS = 64  # connections at the same time
_ACCEPT_PAUSE = 1.0  # seconds without accepting, after a lack of descriptors


class ConnectionFilter:
    """Accepts connections, and closes those that are not from clients of torch's store.

    Args:
        listener: the listening socket, which the caller closes.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self, listener: socket.socket, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._clock = clock
        self._clients: dict[socket.socket, _Client] = {}
        self._paused_until = 0.0  # on the clock: no connection is accepted before

    def fds(self) -> list[int]:
        """Descriptors that are readable when `check` has something to do."""
        return [self._listener.fileno()] if self._accepts() else []

    def due(self) -> float | None:
        """Seconds until `check` must be called in any case, or None."""
        if self._clients:
            return _CHECK_INTERVAL
        return None if self._accepts() else max(self._paused_until - self._clock(), 0.0)

    def check(self) -> str:
        """Return the address of a client of torch's store, if one has connected; never blocks."""
        self._accept()
        for connection, client in list(self._clients.items()):
            received: bytes | None = None
            with contextlib.suppress(BlockingIOError):
                received = _peek(connection)
            if received == _GREETING:
                return client.name
            may_be_one = received is None or (received and _GREETING.startswith(received))
            if not may_be_one or self._clock() >= client.until:
                del self._clients[connection]
                connection.close()
        return ""

    def close(self) -> None:
        """Close all connections; clients of torch's store reconnect."""
        for connection in self._clients:
            connection.close()
        self._clients.clear()

    def _accepts(self) -> bool:
        return len(self._clients) < _MAX_CLIENTS and self._clock() >= self._paused_until

    def _accept(self) -> None:
        while self._accepts():
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue  # the client has gone
                # Usually a lack of descriptors; the next call would fail, too.
                self._paused_until = self._clock() + _ACCEPT_PAUSE
                return
            connection.setblocking(False)
            name = f"{address[0]} (port {address[1]})"
            self._clients[connection] = _Client(name, self._clock() + _GREETING_TIMEOUT)


class _Client(NamedTuple):
    name: str
    until: float  # on the clock: when a silent one is closed


def _peek(connection: socket.socket) -> bytes:
    try:
        return connection.recv(len(_GREETING), socket.MSG_PEEK)
    except BlockingIOError:
        raise
    except OSError:
        return b""
