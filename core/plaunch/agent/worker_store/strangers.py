"""Who connects to a store that nobody can serve: torch's clients, or others, who do not matter."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# What every client of TCPStore sends first: an operation's number, and a number to be known by.
_GREETING = b"\0" + (0x3C85F7CE).to_bytes(4, "little")
_PATIENCE = 10.0  # seconds for somebody who connects and says nothing
_LOOK = 0.1  # seconds between two looks at what they have said
_MOST = 64  # connections that are looked at together


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
        self._until: dict[socket.socket, float] = {}

    def fds(self) -> list[int]:
        """Descriptors that are readable when `look` has something to do."""
        return [self._listener.fileno()] if len(self._until) < _MOST else []

    def due(self) -> float | None:
        """Seconds until `look` wants to be called whatever happens, or None."""
        return _LOOK if self._until else None

    def look(self) -> str:
        """The address of a client of torch's store, if there is one; never waits."""
        with contextlib.suppress(OSError):  # nobody more, or nobody any more
            while len(self._until) < _MOST:
                guest, _ = self._listener.accept()
                guest.setblocking(False)
                self._until[guest] = self._clock() + _PATIENCE
        for guest, until in list(self._until.items()):
            said: bytes | None = None
            with contextlib.suppress(BlockingIOError):
                said = _first_words(guest)
            if said == _GREETING:
                host, port = guest.getpeername()[:2]
                return f"{host} (port {port})"
            is_one_yet = said is None or (said and _GREETING.startswith(said))
            if not is_one_yet or self._clock() >= until:
                del self._until[guest]
                guest.close()
        return ""

    def close(self) -> None:
        """Send everybody away."""
        for guest in self._until:
            guest.close()
        self._until.clear()


def _first_words(guest: socket.socket) -> bytes:
    try:
        return guest.recv(len(_GREETING), socket.MSG_PEEK)
    except BlockingIOError:
        raise
    except OSError:
        return b""
