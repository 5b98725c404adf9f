"""A small server on a thread, which slow clients cannot block and which never polls."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
import weakref
from typing import TYPE_CHECKING

from plaunch.durations import milliseconds
from plaunch.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("plaunch")

MAX_CONNECTIONS = 8
CONNECTION_TIMEOUT = 5.0  # seconds for a request and its answer
_REST_WAIT = 1.0  # seconds for threads to end
_ANSWER_WAIT = 0.2  # seconds for answers in progress
ACCEPT_PAUSE = 1.0


class ConnectionServer:
    """Answers connections to one socket, from `start` to `stop`.

    One thread accepts connections, and each connection has its own thread while it lasts. It is
    closed after `timeout` seconds in any case. When there are too many, the oldest one is closed,
    so that a probe is answered even if other clients are slow. A forked process does not keep the
    socket open.

    Args:
        listener: a non-blocking listening socket, which the server closes.
        answer: answers one connection, on its thread, and leaves it open; it may raise OSError.
        name: the name of its threads.
        most: the maximum number of connections at a time.
        timeout: seconds for each connection.
        clock: monotonic seconds.
        accept_pause: seconds before accepting again after accept has failed.
    """

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[socket.socket], None],
        *,
        name: str,
        most: int = MAX_CONNECTIONS,
        timeout: float = CONNECTION_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        accept_pause: float = ACCEPT_PAUSE,
    ) -> None:
        self._answer_one = answer
        self._name = name
        self._listener = listener
        self._most = most
        self._timeout = timeout
        self._clock = clock
        self._accept_pause = accept_pause
        self._changed = threading.Condition()
        self._ends: dict[socket.socket, float] = {}  # deadlines, in order of arrival
        self._open: set[socket.socket] = set()  # also those that were cut off, until they end
        self._wake_read, self._wake_write = os.pipe()
        self._thread: threading.Thread | None = None
        self._is_over = False
        _SERVERS.add(self)

    def start(self) -> None:
        """Start to serve; also after `rest`."""
        if self._thread is not None or self._is_over:
            return
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        start_thread(thread, blocks_signals=True)
        self._thread = thread

    def rest(self) -> None:
        """Stop all threads until `start`, so that the process can fork; requests wait meanwhile."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        os.write(self._wake_write, b"x")
        thread.join(_REST_WAIT)
        if not thread.is_alive():
            os.read(self._wake_read, 1)
        with self._changed:
            self._changed.wait_for(lambda: not self._open, _ANSWER_WAIT)
            for connection in self._open:
                _cut_off(connection)
            self._changed.wait_for(lambda: not self._open, _REST_WAIT)

    def stop(self) -> None:
        """Stop the server, and close all connections. May be called twice."""
        if self._is_over:
            return
        self.rest()
        self._close()

    def _close(self) -> None:
        self._is_over = True
        self._listener.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        """Wait for a connection, a deadline or the end; False at the end."""
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        poller.register(self._listener, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(milliseconds(self._pause()))}
        if self._wake_read in ready:
            return False
        self._cut_off_late()
        if self._listener.fileno() not in ready:
            return True
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return True  # the client has gone already
        except OSError as error:  # usually because too many descriptors are open
            logger.debug("a connection of %s cannot be accepted: %s", self._name, error)
            poller.unregister(self._listener)
            return not poller.poll(milliseconds(self._accept_pause))
        self._serve(connection)
        return True

    def _pause(self) -> float | None:
        """Seconds until the next connection is late."""
        with self._changed:
            first = min(self._ends.values(), default=None)
        return None if first is None else max(first - self._clock(), 0.0) + 0.001

    def _cut_off_late(self) -> None:
        now = self._clock()
        with self._changed:
            for connection in [c for c, end in self._ends.items() if end <= now]:
                _cut_off(connection)
                del self._ends[connection]

    def _serve(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        connection.settimeout(self._timeout)
        with self._changed:
            while len(self._ends) >= self._most:
                oldest = next(iter(self._ends))
                _cut_off(oldest)
                del self._ends[oldest]
            self._ends[connection] = self._clock() + self._timeout
            self._open.add(connection)
        thread = threading.Thread(
            target=self._answer, args=(connection,), name=f"{self._name}-answer", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the system's limit of threads
            logger.debug("a connection of %s cannot be answered: %s", self._name, error)
            self._forget(connection)

    def _answer(self, connection: socket.socket) -> None:
        try:
            self._answer_one(connection)
        except OSError:
            pass  # it was closed, or its client has gone
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._changed:
            self._ends.pop(connection, None)
            self._open.discard(connection)
            connection.close()
            self._changed.notify_all()


# All open servers, for a fork: a forked worker would keep the address in use, and clients that
# connect to it would wait for an answer.
_SERVERS: weakref.WeakSet[ConnectionServer] = weakref.WeakSet()


def _close_in_child() -> None:
    for server in tuple(_SERVERS):
        if not server._is_over:
            server._close()


os.register_at_fork(after_in_child=_close_in_child)


def _cut_off(connection: socket.socket) -> None:
    # Its thread closes it, so that its descriptor is not reused meanwhile.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
