"""The server of a job's store: one thread, no blocking call but its `select`."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from typing import TYPE_CHECKING

from plaunch_job_store import frames
from plaunch_job_store.connection import SILENCE_TIMEOUT, ClientConnection, keep_alive
from plaunch_job_store.frames import MessageKind, ProtocolError
from plaunch_job_store.server_greeting import ServerGreeting
from plaunch_job_store.table import Session, StoreTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_job_store.authentication import Authenticator
    from plaunch_job_store.frames import Fields, Result

GREETING_TIMEOUT = 5.0  # seconds from the connection to the end of its greeting
RESUME_TIMEOUT = 0.25  # seconds in which the session of a closed connection can be resumed
MAX_STRANGERS = 512  # connections that have not finished their greeting
_MIN_PATIENCE = 0.1  # seconds that each of them gets, if there are so many
_READ_SIZE = 256 << 10  # bytes per connection and turn, so that all get their turn
_ACCEPTS = 64  # connections per turn
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_ROOM_PAUSE = 0.1  # seconds
_MAPPED = "::ffff:"  # begins an address of IPv4 on a socket of both families


class StoreServer:
    """Serves a job's store on a listening socket.

    Args:
        listener: the socket; it belongs to the server from now on.
        authenticator: checks the clients.
        max_connections: connections with a session; the others are refused.
        max_strangers: connections that have not finished their greeting.
        table: the data.
        clock: a monotonic clock, in seconds.
        resume_timeout: see `RESUME_TIMEOUT`.
        report: called with the address of a peer and the reason, a sentence about "the node", when
            a connection is refused; it returns at once.
    """

    def __init__(
        self,
        listener: socket.socket,
        authenticator: Authenticator,
        *,
        max_connections: int,
        max_strangers: int = MAX_STRANGERS,
        table: StoreTable | None = None,
        clock: Callable[[], float] = time.monotonic,
        resume_timeout: float = RESUME_TIMEOUT,
        report: Callable[[str, str], None] = lambda peer, reason: None,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._greeting = ServerGreeting(authenticator)
        self._max_connections = max_connections
        self._max_strangers = max_strangers
        self._table = table or StoreTable()
        self._clock = clock
        self._resume_timeout = resume_timeout
        self._report = report
        self._selector = selectors.DefaultSelector()
        self._strangers: dict[ClientConnection, None] = {}  # in the order of their deadlines
        self._connections: dict[bytes, ClientConnection] = {}  # by session
        self._detached: dict[bytes, tuple[float, Session]] = {}  # deadline, in their order
        self._accepts_at = 0.0  # no earlier, if there was no room for a connection
        self._is_over = False
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def watch(self, descriptor: int, on_readable: Callable[[], None]) -> None:
        """Call `on_readable` whenever `descriptor` is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, on_readable)

    def stop(self) -> None:
        """Let `serve` return."""
        self._is_over = True

    def serve(self) -> None:
        """Serve until `stop`, and close everything."""
        try:
            while not self._is_over:
                self.turn(self._patience())
        finally:
            self.close()

    def close(self) -> None:
        """Close all connections and the listener."""
        for connection in (*self._strangers, *self._connections.values()):
            connection.sock.close()
        self._listener.close()
        self._selector.close()

    def turn(self, timeout: float | None) -> None:
        """Wait for at most `timeout` seconds, and do what there is to do."""
        for key, mask in self._selector.select(timeout):
            if isinstance(key.data, ClientConnection):
                if key.data.sock.fileno() >= 0:  # else it was closed in this turn
                    self._serve(key.data, mask)
            else:
                key.data()
        now = self._clock()
        for connection in list(self._strangers):
            if connection.deadline > now:
                break
            self._drop(connection)
        for session_id, (until, session) in list(self._detached.items()):
            if until > now:
                break
            del self._detached[session_id]
            if self._table.end(session, is_orderly=False):
                self._report_loss()
        if self._accepts_at and now >= self._accepts_at:
            self._accepts_at = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _patience(self) -> float | None:
        """Seconds until something is due; None: nothing is."""
        due = [connection.deadline for connection in self._strangers][:1]
        due += [until for until, _ in self._detached.values()][:1]
        if self._accepts_at:
            due.append(self._accepts_at)
        return max(min(due) - self._clock(), 0.0) if due else None

    # --- connections ------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            if len(self._strangers) >= self._max_strangers and not self._make_room():
                return
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    # The kernel keeps the connection; a stranger's place may become free.
                    self._drop_oldest_stranger()
                    self._pause_accepting(self._clock() + _NO_ROOM_PAUSE)
                    return
                continue  # the client has gone
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                keep_alive(sock, SILENCE_TIMEOUT)
            peer = str(address[0]).removeprefix(_MAPPED)
            connection = ClientConnection(sock, self._clock() + GREETING_TIMEOUT, peer)
            self._strangers[connection] = None
            self._selector.register(sock, selectors.EVENT_READ, connection)

    def _make_room(self) -> bool:
        """Drop the oldest stranger if it had its time; else accept none until then."""
        oldest = next(iter(self._strangers))
        until = oldest.deadline - GREETING_TIMEOUT + _MIN_PATIENCE
        if until > self._clock():
            self._pause_accepting(until)
            return False
        self._drop(oldest)
        return True

    def _pause_accepting(self, until: float) -> None:
        """Leave new connections to the kernel until then."""
        self._accepts_at = until
        self._selector.unregister(self._listener)

    def _drop_oldest_stranger(self) -> None:
        oldest = next(iter(self._strangers), None)
        if oldest is not None:
            self._drop(oldest)

    def _drop(self, connection: ClientConnection) -> None:
        """Close a connection; its session, if it has one, can be resumed for a moment."""
        self._strangers.pop(connection, None)
        self._selector.unregister(connection.sock)
        connection.sock.close()
        self._detach(connection)

    def _serve(self, connection: ClientConnection, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                connection.send_rest()
            if mask & selectors.EVENT_READ:
                data = connection.sock.recv(_READ_SIZE)
                if not data:
                    self._drop(connection)
                    return
                if not connection.is_refused:
                    connection.received.feed(data)
            # The next request of a client is carried out once it has read the last reply.
            if not (connection.unsent or connection.is_refused):
                for kind, fields in connection.received.frames():
                    self._receive(connection, kind, fields)
                    if connection.unsent or connection.is_refused:
                        break
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            return
        except ProtocolError as error:
            self._refuse(connection, str(error))
        if connection.sock.fileno() >= 0:
            self._select(connection)

    def _select(self, connection: ClientConnection) -> None:
        """Wait until the client reads, if there is something to send; else for what it sends."""
        mask = selectors.EVENT_WRITE if connection.unsent else selectors.EVENT_READ
        if self._selector.get_key(connection.sock).events != mask:
            self._selector.modify(connection.sock, mask, connection)
        if connection.is_refused and not connection.unsent:
            # A close would discard the reason if the client still sends.
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_WR)

    def _refuse(self, connection: ClientConnection, reason: str) -> None:
        """Send the reason, and close the connection once the client has, or soon."""
        self._report(connection.peer, reason)
        self._detach(connection)
        if connection not in self._strangers:
            connection.deadline = self._clock() + GREETING_TIMEOUT
            self._strangers[connection] = None
        connection.is_refused = True
        connection.send(frames.frame(MessageKind.REFUSED, frames.text(reason)))

    def _detach(self, connection: ClientConnection) -> None:
        """Separate a connection from its session, which can be resumed for a moment."""
        session, connection.session = connection.session, None
        if session is not None:
            del self._connections[session.session_id]
            self._table.detach(session)
            until = self._clock() + self._resume_timeout
            self._detached[session.session_id] = (until, session)

    # --- messages ---------------------------------------------------------------------------------

    def _receive(self, connection: ClientConnection, kind: MessageKind, fields: Fields) -> None:
        session = connection.session
        if session is None:
            if self._greeting.receive(connection, kind, fields):
                self._welcome(connection)
        elif kind is MessageKind.REQUEST:
            number = fields.u64()
            self._table.carry_out(session, number, frames.decode_operations(fields))
        elif kind is MessageKind.CANCEL:
            self._table.cancel(session, fields.u64())
            fields.end()
        elif kind is MessageKind.BYE:
            connection.session = None
            del self._connections[session.session_id]
            self._table.end(session, is_orderly=True)
            self._drop(connection)
        else:
            raise ProtocolError(f"a client does not send {kind.name}")

    def _welcome(self, connection: ClientConnection) -> None:
        """Give an authenticated connection its session, the former one if that exists."""
        if len(self._connections) >= self._max_connections:
            raise ProtocolError(f"the store has {self._max_connections} connections, its limit")
        del self._strangers[connection]
        session = self._take_session(connection.resumes)
        is_resumed = session is not None
        if session is None:
            session = Session(os.urandom(frames.SESSION_SIZE))
            self._table.begin(session)
        connection.session = session
        connection.received.limit = frames.MAX_FRAME
        self._connections[session.session_id] = connection
        connection.send(self._greeting.welcome(connection, session, is_resumed=is_resumed))

        def deliver(number: int, results: list[Result]) -> None:
            connection.reply(number, results)
            self._select(connection)

        session.deliver = deliver

    def _report_loss(self) -> None:
        """Notify all clients that a session has ended, and its keys are deleted."""
        for connection in list(self._connections.values()):
            connection.send(frames.frame(MessageKind.LOST))
            self._select(connection)

    def _take_session(self, session_id: bytes) -> Session | None:
        """Return the session to resume, without its former connection."""
        former = self._connections.get(session_id)
        if former is not None:
            self._drop(former)
        found = self._detached.pop(session_id, None)
        return None if found is None else found[1]
