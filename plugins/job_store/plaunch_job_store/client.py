"""The client of a job's store: one connection, which all threads of an agent share."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousConnectionError, RendezvousError

from plaunch_job_store import frames
from plaunch_job_store.client_greeting import ClientGreeting, StoreRefusedError
from plaunch_job_store.connection import SILENCE_TIMEOUT, keep_alive
from plaunch_job_store.frames import (
    Code,
    FrameBuffer,
    MessageKind,
    Operation,
    ProtocolError,
)
from plaunch_job_store.other_programs import is_tcp_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch_job_store.authentication import Authenticator
    from plaunch_job_store.frames import Result

RECONNECT_TIMEOUT = 1.0  # seconds; longer outages are left to the caller
_RECONNECT_PAUSE = 0.02  # seconds between two attempts
_GOODBYE_TIMEOUT = 1.0  # seconds
CONNECT_TIMEOUT = 5.0  # seconds for the first connection and its greeting
_READ_SIZE = 256 << 10


class _Request:
    """A request without a reply yet."""

    def __init__(self, owner: object, data: bytes, *, may_repeat: bool) -> None:
        self.owner = owner
        self.data = data
        self.may_repeat = may_repeat  # also in another session
        self.is_answered = False
        self.results: list[Result] = []
        self.error = ""
        self._is_pending = threading.Lock()  # cheaper than an Event, which has two
        self._is_pending.acquire()

    def answer(self, results: list[Result]) -> None:
        """Let the caller return `results`."""
        self.results = results
        self._finish()

    def fail(self, error: str) -> None:
        """Let the caller raise `error`."""
        self.error = error
        self._finish()

    def wait(self, timeout: float) -> bool:
        """Wait for the answer; False if there is none within `timeout` seconds."""
        return self.is_answered or self._is_pending.acquire(timeout=timeout)

    def _finish(self) -> None:
        self.is_answered = True
        with contextlib.suppress(RuntimeError):  # another thread was faster
            self._is_pending.release()


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
        self._lock = threading.Lock()  # of the requests
        self._send_lock = threading.Lock()  # of what is written to the socket
        self._pending: dict[int, _Request] = {}
        self._is_closed = False
        self._problem = ""  # why it is broken
        self.session = b""
        self._received = FrameBuffer()
        try:
            self._sock = self._open(connect_timeout)
        except TimeoutError as error:
            self._refuse_tcp_store()
            raise RendezvousConnectionError(
                self._describe(
                    "it takes connections but does not answer: its host is stopped, or the port "
                    "belongs to another program"
                )
            ) from error
        except (OSError, ProtocolError) as error:
            self._refuse_tcp_store()
            reason = getattr(error, "strerror", None) or error
            raise RendezvousConnectionError(self._describe(str(reason))) from error
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

    def close(self) -> None:
        """End the session; the keys that it holds remain. May be called twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._fail_all("the connection is closed")
        # A thread that cannot send, because the server does not read, has the lock.
        if self._send_lock.acquire(timeout=_GOODBYE_TIMEOUT):
            with contextlib.suppress(OSError):
                self._sock.send(frames.frame(MessageKind.BYE), socket.MSG_DONTWAIT)
            self._send_lock.release()
        self._hang_up()
        self._thread.join(_GOODBYE_TIMEOUT)
        self._sock.close()

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
        may_repeat = all(item.code in (Code.GET, Code.WAIT) for item in operations)
        number = next(self._numbers)
        data = frames.frame(
            MessageKind.REQUEST, frames.u64(number), frames.encode_operations(operations)
        )
        request = _Request(owner, data, may_repeat=may_repeat)
        with self._lock:
            if self.is_broken:
                raise RendezvousConnectionError(
                    f"the connection to the rendezvous store at {self.endpoint} is closed"
                    + (f": {self._problem}" if self._problem else "")
                )
            self._pending[number] = request
        try:
            self._send(request.data)
            if wait is not None and not request.wait(wait):
                self._send(frames.frame(MessageKind.CANCEL, frames.u64(number)))
            if not request.wait(self.request_timeout):
                request.error = f"no reply within {self.request_timeout:g} s"
        finally:
            with self._lock:
                self._pending.pop(number, None)
        if request.error:
            raise RendezvousConnectionError(
                f"the rendezvous store at {self.endpoint}: {request.error}"
            )
        return request.results

    def fail(self, owner: object) -> None:
        """End the calls of `owner`; connect again if one of them had no reply."""
        with self._lock:
            own = [request for request in self._pending.values() if request.owner is owner]
        for request in own:
            request.fail("the connection is closed")
        if any(not request.may_repeat for request in own):
            self._hang_up()  # and connect again

    def _send(self, data: bytes) -> None:
        """Send a frame; after an error, the reader connects again and sends it again."""
        with self._send_lock:
            try:
                self._sock.sendall(data)
            except OSError:
                self._hang_up()

    def _fail_all(self, reason: str) -> None:
        with self._lock:
            pending, self._pending = list(self._pending.values()), {}
        for request in pending:
            request.fail(reason)

    # --- the reader's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                self._read()
            except (OSError, ProtocolError) as error:
                problem: BaseException = error
            if self._is_closed:
                return
            try:
                self._reconnect()
            except (OSError, ProtocolError, RendezvousError) as error:
                problem = error
                break
        with self._lock:
            self._problem = str(getattr(problem, "strerror", None) or problem)
        self._sock.close()
        self._fail_all(self._problem)
        self._on_loss()

    def _read(self) -> None:
        """Receive replies until the connection ends."""
        while True:
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
                    request = self._pending.get(number)
                if request is not None:  # else the caller has given up
                    request.answer(frames.decode_results(fields))
            data = self._sock.recv(_READ_SIZE)
            if not data:
                raise ConnectionResetError("the server has closed the connection")
            self._received.feed(data)

    def _reconnect(self) -> None:
        deadline = self._clock() + RECONNECT_TIMEOUT
        former = self.session
        while True:
            try:
                sock = self._open(max(deadline - self._clock(), _RECONNECT_PAUSE))
                break
            except (OSError, ProtocolError, RendezvousConnectionError):
                if self._is_closed or self._clock() >= deadline:
                    raise
                time.sleep(_RECONNECT_PAUSE)
        with self._send_lock:
            self._sock.close()
            self._sock = sock
            is_resumed = self.session == former
            with self._lock:
                pending = dict(self._pending)
            for _, request in sorted(pending.items()):
                if not (is_resumed or request.may_repeat):
                    request.fail("the connection was lost, and the session has ended")
                elif not request.is_answered:
                    sock.sendall(request.data)
        if self._is_closed:
            self._hang_up()
        if not is_resumed:
            self._on_loss()

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
