"""The server of a job's store: one thread, no blocking call but its `select`."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from plaunch_job_store import frames
from plaunch_job_store.connection import ClientConnection, EndConnectionError, keep_alive
from plaunch_job_store.frames import MessageKind, ProtocolError
from plaunch_job_store.limits import (
    GREETING_TIMEOUT,
    MAX_BUFFERED,
    MAX_FRAME,
    MAX_STRANGERS,
    RESUME_TIMEOUT,
    SILENCE_TIMEOUT,
    TURN_TIME,
)
from plaunch_job_store.reports import describe_error
from plaunch_job_store.server_greeting import ServerGreeting
from plaunch_job_store.sessions import SessionLostError, incarnation_of, make_session_id
from plaunch_job_store.table import Session, StoreTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_job_store.answers import Answer
    from plaunch_job_store.authentication import Authenticator
    from plaunch_job_store.frames import Fields

_MIN_PATIENCE = 0.1  # seconds that each stranger gets, if there are too many
_ACCEPTS = 64  # connections at a time
_ANSWERS = 16  # waits at a time
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE = 0.1  # seconds without new connections after an error of the listener
_MAPPED = "::ffff:"  # begins an address of IPv4 on a socket of both families


class StoreServer:
    """Serves a job's store on a listening socket.

    What a client sends, and any error of its connection, ends at most that connection.

    Args:
        listener: the socket; it belongs to the server from now on.
        authenticator: checks the clients.
        max_connections: connections with a session; the others are refused.
        max_strangers: connections that have not finished their greeting.
        table: the data.
        clock: a monotonic clock, in seconds.
        resume_timeout: see `RESUME_TIMEOUT`.
        incarnation: the number of servers of this store before this one, and 1. Sessions of the
            others are refused: what they held is lost.
        report: called with the address of a peer and the reason, a sentence about "the node", when
            a connection is refused, or ended by an error of the server; it returns at once.
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
        incarnation: int = 1,
        report: Callable[[str, str], None] = lambda peer, reason: None,
    ) -> None:
        listener.setblocking(False)
        keep_alive(listener, SILENCE_TIMEOUT)
        self._listener = listener
        self._greeting = ServerGreeting(authenticator)
        self._max_connections = max_connections
        self._max_strangers = max_strangers
        self._table = table or StoreTable()
        self._clock = clock
        self._resume_timeout = resume_timeout
        self._incarnation = incarnation
        self._report = report
        self._selector = selectors.DefaultSelector()
        self._ready: OrderedDict[ClientConnection | Callable[[], None], int] = OrderedDict()
        self._strangers: OrderedDict[ClientConnection, None] = OrderedDict()  # by their deadlines
        self._connections: dict[bytes, ClientConnection] = {}  # by session
        self._detached: OrderedDict[bytes, tuple[float, Session]] = OrderedDict()  # by deadlines
        self._buffered_bytes = 0  # of all connections
        self._is_loss_due = False  # LOST is to be sent to all
        self._accepts_at = 0.0  # no earlier, if there was no room for a connection
        self._is_over = False
        self._ends_at: float | None = None  # at the latest, after `finish`
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def watch(self, descriptor: int, on_readable: Callable[[], None]) -> None:
        """Call `on_readable` whenever `descriptor` is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, on_readable)

    def stop(self) -> None:
        """Let `serve` return."""
        self._is_over = True

    def finish(self, descriptor: int, timeout: float) -> None:
        """Let `serve` return once no session is left, or after `timeout` seconds.

        Args:
            descriptor: a descriptor of `watch`, which is not watched any more.
            timeout: in seconds.
        """
        self._selector.unregister(descriptor)
        self._ends_at = self._clock() + timeout

    def serve(self) -> None:
        """Serve until `stop` or `finish`, and close everything."""
        try:
            while not (self._is_over or self._has_finished()):
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
        """Wait for at most `timeout` seconds, and do what there is to do, piece by piece.

        A piece takes some milliseconds. What is left after `TURN_TIME` is for the next turn, so
        that deadlines are kept, and all clients get their turn, however much some of them ask.
        """
        # Connections that have become ready come before the rest of those that asked for much. Of
        # these, nothing more is read until they are in `_ready` no more.
        for key, mask in self._selector.select(0.0 if self._ready else timeout):
            self._ready.setdefault(key.data, mask)
        until = self._clock() + TURN_TIME
        if self._is_loss_due:
            self._is_loss_due = False
            for connection in self._connections.values():
                connection.is_loss_due = True
                self._ready.setdefault(connection, 0)
        while self._do_piece(until) and self._clock() < until:
            pass

    def _do_piece(self, until: float) -> bool:
        """Do one of the things that are due; False if there are none."""
        now = self._clock()
        stranger = next(iter(self._strangers), None)
        detached = next(iter(self._detached.values()), None)
        if stranger is not None and stranger.deadline <= now:
            self._drop(stranger)
        elif detached is not None and detached[0] <= now:
            self._end_oldest_detached()
        elif self._accepts_at and self._accepts_at <= now:
            self._accepts_at = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        elif self._table.has_answers():
            self._table.answer_waits(_ANSWERS)
        elif self._ready:
            ready, mask = self._ready.popitem(last=False)
            if isinstance(ready, ClientConnection):
                self._attempt(ready, self._serve, ready, mask, until)
            else:
                ready()
        else:
            return False
        return True

    def _has_finished(self) -> bool:
        if self._ends_at is None:
            return False
        return not (self._connections or self._detached) or self._clock() >= self._ends_at

    def _patience(self) -> float | None:
        """Seconds until something is due; None: nothing is."""
        if self._ready or self._is_loss_due or self._table.has_answers():
            return 0.0
        due = [connection.deadline for connection in self._strangers][:1]
        due += [until for until, _ in self._detached.values()][:1]
        if self._ends_at is not None:
            due.append(self._ends_at)
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
                if error.errno == errno.ECONNABORTED:
                    continue
                # The kernel keeps the connection; a stranger's place may become free.
                if error.errno in _NO_ROOM and self._strangers:
                    self._drop(next(iter(self._strangers)))
                self._pause_accepting(self._clock() + _PAUSE)
                return
            peer = str(address[0]).removeprefix(_MAPPED)
            connection = ClientConnection(sock, peer, self._clock() + GREETING_TIMEOUT)
            self._attempt(connection, self._admit, connection)

    def _admit(self, connection: ClientConnection) -> None:
        connection.sock.setblocking(False)
        self._selector.register(connection.sock, connection.awaits, connection)
        self._strangers[connection] = None
        connection.send(self._greeting.challenge(connection))

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

    def _attempt(
        self, connection: ClientConnection, step: Callable[..., None], *args: object
    ) -> None:
        """Run a step for a connection. What it raises ends this connection, and no other."""
        try:
            step(*args)
            if not connection.is_closed:
                self._settle(connection)
        except SessionLostError as error:
            self._refuse(connection, str(error), is_reported=False)
        except ProtocolError as error:
            self._refuse(connection, str(error))
        except EndConnectionError as error:
            self._report(connection.peer, str(error))
            self._drop(connection)
        except OSError:
            self._drop(connection)
        except Exception as error:  # noqa: BLE001 - a bug must not end the job's store
            self._refuse(connection, f"an error of the server: {describe_error(error)}")

    def _settle(self, connection: ClientConnection) -> None:
        """Wait for what the connection needs next, and count its buffers."""
        mask = selectors.EVENT_WRITE if connection.unsent else selectors.EVENT_READ
        if mask != connection.awaits:
            self._selector.modify(connection.sock, mask, connection)
            connection.awaits = mask
        if connection.is_refused and not connection.unsent:
            # A close would discard the reason if the client still sends.
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_WR)
        self._count(connection, connection.buffered_bytes)
        if self._buffered_bytes > MAX_BUFFERED:
            largest = max(
                (*self._connections.values(), *self._strangers), key=lambda one: one.buffered_bytes
            )
            self._report(largest.peer, "the store's buffers are full; the node takes most of them")
            self._drop(largest)

    def _count(self, connection: ClientConnection, buffered_bytes: int) -> None:
        self._buffered_bytes += buffered_bytes - connection.counted_bytes
        connection.counted_bytes = buffered_bytes

    def _refuse(
        self, connection: ClientConnection, reason: str, *, is_reported: bool = True
    ) -> None:
        """Send the reason, and close the connection once the client has, or soon."""
        if connection.is_refused:  # sending the reason has failed
            self._drop(connection)
            return
        if is_reported:
            self._report(connection.peer, reason)
        self._detach(connection)
        if connection not in self._strangers:
            connection.deadline = self._clock() + GREETING_TIMEOUT
            self._strangers[connection] = None
        connection.is_refused = True
        connection.received.clear()
        reply = frames.frame(MessageKind.REFUSED, frames.text(reason))
        self._attempt(connection, connection.send, reply)

    def _drop(self, connection: ClientConnection) -> None:
        """Close a connection; its session, if it has one, can be resumed for a moment."""
        if connection.is_closed:
            return
        self._detach(connection)
        self._strangers.pop(connection, None)
        self._ready.pop(connection, None)
        self._count(connection, 0)
        with contextlib.suppress(KeyError):  # it could not be registered
            self._selector.unregister(connection.sock)
        connection.sock.close()

    def _serve(self, connection: ClientConnection, mask: int, until: float) -> None:
        """Send and receive, and carry out requests until the time is over."""
        if connection.is_loss_due:
            connection.is_loss_due = False
            connection.send(frames.frame(MessageKind.LOST))
        if mask & selectors.EVENT_WRITE:
            connection.send_rest()
        if mask & selectors.EVENT_READ and not connection.receive():
            self._drop(connection)
            return
        if not connection.takes_requests:
            return
        for kind, fields in connection.received.frames():
            self._receive(connection, kind, fields)
            if not connection.takes_requests:
                return
            if self._table.has_answers() or self._clock() >= until:
                self._ready[connection] = 0  # there may be more frames
                return

    # --- messages ---------------------------------------------------------------------------------

    def _receive(self, connection: ClientConnection, kind: MessageKind, fields: Fields) -> None:
        session = connection.session
        if session is None:
            if self._greeting.receive(connection, kind, fields):
                self._welcome(connection)
        elif kind is MessageKind.REQUEST:
            self._table.carry_out(session, fields.u64(), frames.decode_operations(fields))
        elif kind is MessageKind.CANCEL:
            number = fields.u64()
            fields.end()
            self._table.cancel(session, number)
        elif kind is MessageKind.BYE:
            fields.end()
            connection.session = None
            del self._connections[session.session_id]
            self._table.end(session, is_orderly=True)
            self._drop(connection)
        else:
            raise ProtocolError(f"a client does not send {kind.name}")

    def _welcome(self, connection: ClientConnection) -> None:
        """Give an authenticated connection its session, the former one if that exists."""
        former = connection.resumes
        if former and incarnation_of(former) != self._incarnation:
            raise SessionLostError(
                "the process of the store that this session was with has ended, and all data is "
                f"lost; its successor (incarnation {self._incarnation}) serves new sessions"
            )
        is_full = len(self._connections) >= self._max_connections
        if is_full and connection.resumes not in self._connections:
            raise ProtocolError(f"the store has {self._max_connections} connections, its limit")
        session = self._take_session(connection.resumes)
        is_resumed = session is not None
        if session is None:
            if len(self._connections) + len(self._detached) >= self._max_connections:
                self._end_oldest_detached()
            session = Session(make_session_id(self._incarnation))
            self._table.begin(session)
        del self._strangers[connection]
        connection.session = session
        connection.received.limit = MAX_FRAME
        self._connections[session.session_id] = connection
        connection.send(self._greeting.welcome(connection, session, is_resumed=is_resumed))

        def deliver(number: int, answer: Answer) -> None:
            self._attempt(connection, connection.reply, number, answer)

        session.deliver = deliver

    def _take_session(self, session_id: bytes) -> Session | None:
        """Return the session to resume, without its former connection."""
        former = self._connections.get(session_id)
        if former is not None:
            self._drop(former)
        found = self._detached.pop(session_id, None)
        return None if found is None else found[1]

    def _detach(self, connection: ClientConnection) -> None:
        """Separate a connection from its session, which can be resumed for a moment."""
        session, connection.session = connection.session, None
        if session is not None:
            del self._connections[session.session_id]
            self._table.detach(session)
            until = self._clock() + self._resume_timeout
            self._detached[session.session_id] = (until, session)

    def _end_oldest_detached(self) -> None:
        """End a session that was not resumed; the others are notified if its keys are deleted."""
        _, (_, session) = self._detached.popitem(last=False)
        if self._table.end(session, is_orderly=False):
            self._is_loss_due = True
