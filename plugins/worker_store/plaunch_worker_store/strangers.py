"""Connections to a store that cannot be served: torch's clients, or others, who do not matter."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

# What every client of TCPStore sends first: an operation's number, and a number to be known by.
_GREETING = b"\0" + (0x3C85F7CE).to_bytes(4, "little")
_PATIENCE = 10.0  # seconds for somebody who connects and says nothing
_LOOK = 0.1  # seconds between two looks at what they have said
_MOST = 64  # connections that are looked at together
_SHORTAGE = 1.0  # seconds without a look for more, when there are no descriptors for them


class Doorkeeper:
    """Accepts connections, and sends away everybody but clients of torch's store.

    Args:
        listener: the socket, which stays the caller's.
        clock: seconds that never go back.
    """

    def __init__(
        self, listener: socket.socket, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._clock = clock
        self._clients: dict[socket.socket, _Client] = {}
        self._closed_until = 0.0  # on the clock: nobody is let in before

    def fds(self) -> list[int]:
        """Descriptors that are readable when `look` has something to do."""
        return [self._listener.fileno()] if self._lets_in() else []

    def due(self) -> float | None:
        """Seconds until `look` must be called in any case, or None."""
        if self._clients:
            return _LOOK
        return None if self._lets_in() else max(self._closed_until - self._clock(), 0.0)

    def look(self) -> str:
        """The address of a client of torch's store, if there is one; never waits."""
        self._let_in()
        for connection, client in list(self._clients.items()):
            said: bytes | None = None
            with contextlib.suppress(BlockingIOError):
                said = _first_words(connection)
            if said == _GREETING:
                return client.name
            is_one_yet = said is None or (said and _GREETING.startswith(said))
            if not is_one_yet or self._clock() >= client.until:
                del self._clients[connection]
                connection.close()
        return ""

    def close(self) -> None:
        """Send everybody away; clients of torch's store come again."""
        for connection in self._clients:
            connection.close()
        self._clients.clear()

    def _lets_in(self) -> bool:
        return len(self._clients) < _MOST and self._clock() >= self._closed_until

    def _let_in(self) -> None:
        while self._lets_in():
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue  # whoever it was has gone
                # No descriptors, above all; the next call would say the same.
                self._closed_until = self._clock() + _SHORTAGE
                return
            connection.setblocking(False)
            name = f"{address[0]} (port {address[1]})"
            self._clients[connection] = _Client(name, self._clock() + _PATIENCE)


class _Client(NamedTuple):
    name: str
    until: float  # on the clock, when one that has said nothing is sent away


def _first_words(connection: socket.socket) -> bytes:
    try:
        return connection.recv(len(_GREETING), socket.MSG_PEEK)
    except BlockingIOError:
        raise
    except OSError:
        return b""
