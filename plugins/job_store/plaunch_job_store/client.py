"""The client of a job's store: one connection, which all threads of an agent share."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

from plaunch.durations import milliseconds
from plaunch.errors import RendezvousConnectionError, RendezvousError

from plaunch_job_store import frames
from plaunch_job_store.client_greeting import ClientGreeting, StoreRefusedError
from plaunch_job_store.connection import keep_alive
from plaunch_job_store.frames import (
    Code,
    FrameBuffer,
    MessageKind,
    Operation,
    ProtocolError,
)
from plaunch_job_store.limits import SILENCE_TIMEOUT
from plaunch_job_store.other_programs import is_tcp_store
from plaunch_job_store.sessions import incarnation_of
from plaunch_job_store.store_request import StoreRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch_job_store.authentication import Authenticator
    from plaunch_job_store.frames import Result

RECONNECT_TIMEOUT = 1.0  # seconds; longer outages are left to the caller
_RECONNECT_PAUSE = 0.02  # seconds between two attempts
_GOODBYE_TIMEOUT = 1.0  # seconds
CONNECT_TIMEOUT = 5.0  # seconds for the first connection and its greeting
_READ_SIZE = 256 << 10


class StoreSilentError(RendezvousConnectionError):
    """The program at the endpoint takes connections, and sends nothing."""


class StoreClient:
    """One connection to the store, with one session. Thread-safe.

    If the connection breaks, the client resumes its session over another one within
    `RECONNECT_TIMEOUT`, and sends again what has no reply; the server carries nothing out twice.
    If it cannot, it is broken: all calls raise, and the caller creates another client.

    Args:
        dial: opens a connection within so many seconds; raises OSError, or
            RendezvousConnectionError with a complete message.
        authenticator: makes and checks proofs.
        endpoint: the endpoint, for messages.
        request_timeout: seconds after which a request without a reply fails.
        on_loss: called on the client's own thread when the server has ended the session of another
            client whose connection was lost, when this client has got another session, and when it
            is broken.
        connect_timeout: seconds for the first connection, including the greeting.
        clock: a monotonic clock, in seconds.

    Raises:
        RendezvousConnectionError: the store cannot be reached.
        StoreRefusedError: see there.
    """

    def __init__(
        self,
        dial: Callable[[float], socket.socket],
        authenticator: Authenticator,
        endpoint: str,
        request_timeout: float,
        *,
        on_loss: Callable[[], None] = lambda: None,
        connect_timeout: float = CONNECT_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dial = dial
        self._authenticator = authenticator
        self.endpoint = endpoint
        self.request_timeout = request_timeout
        self._on_loss = on_loss
        self._clock = clock
        self._numbers = itertools.count(1)
        # Protects the socket and what is written to it. A thread that holds it may acquire `_lock`.
        self._send_lock = threading.Lock()
        self._lock = threading.Lock()  # of what follows
        self._pending: set[StoreRequest] = set()
        self._sent: dict[int, StoreRequest] = {}  # those of them that have a number
        self._is_closed = False
        self._has_said_goodbye = False
        self._problem = ""  # why it is broken
        self.session = b""
        self._received = FrameBuffer()
        try:
            self._sock = self._open(connect_timeout)
        except TimeoutError as error:
            self._refuse_tcp_store()
            raise StoreSilentError(
                self._describe(
                    "it takes connections but does not answer: its host is stopped, or the port "
                    "belongs to another program"
                ),
                names_store=True,
            ) from error
        except (OSError, ProtocolError) as error:
            self._refuse_tcp_store()
            text = self._describe(_text_of(error))
            raise RendezvousConnectionError(text, names_store=True) from error
        self._thread = threading.Thread(target=self._run, name="plaunch-store", daemon=True)
        self._thread.start()

    def _describe(self, reason: str) -> str:
        return f"the rendezvous store at {self.endpoint} cannot be reached: {reason}"

    def _refuse_tcp_store(self) -> None:
        """Raise an error if the program at the endpoint is a TCPStore of torch."""
        if is_tcp_store(self._dial):
            raise StoreRefusedError(
                f"the program at {self.endpoint} is a TCPStore of torch, such as torchrun's, "
                "not the store of a plaunch job; use it with --rdzv-conf store=torch on all nodes, "
                "or choose another port in --rdzv-endpoint"
            )

    @property
    def is_broken(self) -> bool:
        """Whether no request can succeed any more."""
        return self._is_closed or bool(self._problem)

    @property
    def incarnation(self) -> int:
        """The incarnation of the server; above 1 if the data of others before it is lost."""
        return incarnation_of(self.session)

    def close(self) -> None:
        """End the session; the keys that it holds remain. May be called twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._fail_all("the connection is closed")
        # A thread that cannot send, because the server does not read, has the lock. Nothing is sent
        # after the goodbye, as all requests have failed.
        if self._send_lock.acquire(timeout=_GOODBYE_TIMEOUT):
            self._say_goodbye()
            self._send_lock.release()
        self._hang_up()
        self._thread.join(_GOODBYE_TIMEOUT)  # it closes the socket

    def _say_goodbye(self) -> None:
        with contextlib.suppress(OSError):  # the reader connects again, to say it
            self._sock.send(frames.frame(MessageKind.BYE), socket.MSG_DONTWAIT)
            self._has_said_goodbye = True

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    # --- requests ---------------------------------------------------------------------------------

    def call(
        self,
        owner: object,
        operations: Sequence[Operation],
        wait: float | None = None,
    ) -> list[Result]:
        """Send operations, and return their results.

        Args:
            owner: what the caller uses; `fail` of it ends the call.
            operations: what to carry out, at once.
            wait: for a WAIT, after how many seconds it is cancelled.

        Raises:
            RendezvousConnectionError: there is no reply in time; the operations may have been
                carried out.
        """
        frames.check_operations(operations)
        request = StoreRequest(
            owner,
            frames.encode_operations(operations),
            may_repeat=all(item.code in (Code.GET, Code.WAIT) for item in operations),
        )
        with self._lock:
            if self.is_broken:
                raise RendezvousConnectionError(
                    f"the connection to the rendezvous store at {self.endpoint} is closed"
                    + (f": {self._problem}" if self._problem else ""),
                    names_store=True,
                )
            self._pending.add(request)
        try:
            self._send(request)
            if wait is not None and not request.wait(wait):
                self._cancel(request)
            if not request.wait(self.request_timeout):
                request.error = f"no reply within {self.request_timeout:g} s"
        finally:
            with self._lock:
                self._pending.discard(request)
                self._sent.pop(request.number, None)
        if request.error:
            raise RendezvousConnectionError(
                f"the rendezvous store at {self.endpoint}: {request.error}", names_store=True
            )
        return request.results

    def fail(self, owner: object) -> None:
        """End the calls of `owner`; connect again if one of them had no reply."""
        with self._lock:
            own = [request for request in self._pending if request.owner is owner]
        for request in own:
            request.fail("the connection is closed")
        if any(not (request.may_repeat and request.is_sent) for request in own):
            self._hang_up()  # and connect again

    def _send(self, request: StoreRequest) -> None:
        """Send a request under the next number."""
        with self._send_lock:
            if request.is_answered:
                return  # it has failed while another thread was sending
            request.number = next(self._numbers)
            with self._lock:
                self._sent[request.number] = request
            self._write(request.encode())
            request.is_sent = True

    def _cancel(self, request: StoreRequest) -> None:
        """Let the server answer a wait now, also if it must be sent again first."""
        with self._send_lock:
            if not request.is_answered:
                request.is_cancelled = True
                self._write(frames.frame(MessageKind.CANCEL, frames.u64(request.number)))

    def _write(self, data: bytes) -> None:
        """Send data; after an error, the reader connects again and repeats the requests."""
        try:
            self._sock.sendall(data)
        except OSError:
            self._hang_up()

    def _fail_all(self, reason: str) -> None:
        with self._lock:
            pending = list(self._pending)
        for request in pending:
            request.fail(reason)

    # --- the reader's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        problem = "the connection is closed"
        try:
            self._receive_all()
        except (OSError, ProtocolError, RendezvousError) as error:
            problem = _text_of(error)
        finally:
            with self._lock:
                self._problem = problem
            self._hang_up()  # wakes a thread that sends
            with self._send_lock:
                self._sock.close()
            self._fail_all(problem)
        if not self._is_closed:
            self._on_loss()

    def _receive_all(self) -> None:
        """Receive replies until the goodbye; connect again whenever the connection breaks."""
        sock, former = self._sock, self.session
        while True:
            try:
                if sock is not self._sock:
                    self._resume(sock, former)
                self._read()
            except OSError:
                self._hang_up()  # wakes a thread that sends
                with self._send_lock:
                    if self._has_said_goodbye:
                        return
            former = self.session
            sock = self._reconnect()

    def _read(self) -> None:
        """Receive replies until the connection ends."""
        while True:
            self._take_frames()
            self._receive()

    def _receive(self) -> None:
        data = self._sock.recv(_READ_SIZE)
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        self._received.feed(data)

    def _take_frames(self) -> None:
        for kind, fields in self._received.frames():
            if kind is MessageKind.REFUSED:
                raise ProtocolError(f"the server has ended the connection: {fields.text()}")
            if kind is MessageKind.LOST:
                fields.end()
                self._on_loss()
                continue
            if kind is not MessageKind.REPLY:
                raise ProtocolError(f"a server does not send {kind.name}")
            number = fields.u64()
            with self._lock:
                request = self._sent.get(number)
            if request is not None:  # else the caller has given up
                request.answer(frames.decode_results(fields))

    def _reconnect(self) -> socket.socket:
        deadline = self._clock() + RECONNECT_TIMEOUT
        while True:
            try:
                return self._open(max(deadline - self._clock(), _RECONNECT_PAUSE))
            except (OSError, ProtocolError, RendezvousConnectionError):
                if self._is_closed or self._clock() >= deadline:
                    raise
                time.sleep(_RECONNECT_PAUSE)

    def _resume(self, sock: socket.socket, former: bytes) -> None:
        """Use a new connection, and send what has no reply again.

        In another session than the `former` one, requests that write something fail.
        """
        is_resumed = self.session == former
        try:
            with self._send_lock:
                self._sock.close()
                self._sock = sock
                if self._is_closed:
                    self._say_goodbye()
                    raise ConnectionAbortedError("the connection is closed")
                with self._lock:
                    sent = sorted(self._sent.items())
                repeated = []
                for _, request in sent:
                    if not (is_resumed or request.may_repeat):
                        request.fail("the connection was lost, and the session has ended")
                    elif not request.is_answered:
                        repeated.append(request.encode())
                self._repeat(b"".join(repeated))
        finally:
            if not is_resumed:
                self._on_loss()

    def _repeat(self, data: bytes) -> None:
        """Send requests again. Replies are read meanwhile: the server awaits that."""
        rest = memoryview(data)
        poller = select.poll()
        poller.register(self._sock, select.POLLIN | select.POLLOUT)
        while rest:
            events = poller.poll(milliseconds(self.request_timeout))
            if not events:
                raise TimeoutError("the server does not read")
            if events[0][1] & ~select.POLLOUT:
                self._receive()
                self._take_frames()
            if events[0][1] & select.POLLOUT:
                rest = rest[self._sock.send(rest, socket.MSG_DONTWAIT) :]

    def _open(self, timeout: float) -> socket.socket:
        """Connect, greet, and take the session that the server gives."""
        deadline = self._clock() + timeout
        sock = self._dial(timeout)
        try:
            keep_alive(sock, SILENCE_TIMEOUT)
            greeting = ClientGreeting(
                sock, self._authenticator, self.endpoint, deadline, clock=self._clock
            )
            self.session = greeting.greet(self.session)
            self._received = greeting.received
            sock.settimeout(None)
            # A read waits as long as the connection exists; a write does not.
            limit = struct.pack("ll", max(int(self.request_timeout), 1), 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        except BaseException:
            sock.close()
            raise
        return sock


def _text_of(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error)
