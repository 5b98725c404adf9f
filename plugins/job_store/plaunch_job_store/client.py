"""The client of a job's store: one connection, which all threads of an agent share."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from plaunch_membership import RendezvousStore

from plaunch_job_store import frames
from plaunch_job_store.authentication import PROOF_SIZE, is_equal
from plaunch_job_store.frames import (
    TOO_LARGE,
    Code,
    FrameBuffer,
    Kind,
    Operation,
    OperationFailed,
    ProtocolError,
)
from plaunch_job_store.server import SILENCE_TIMEOUT, keep_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch_job_store.authentication import Authenticator
    from plaunch_job_store.frames import Fields, Result

RECONNECT_TIMEOUT = 1.0  # seconds; longer outages are left to the caller
_RECONNECT_PAUSE = 0.02  # seconds between two attempts
_GREETING_TIMEOUT = 5.0  # seconds
_READ_SIZE = 256 << 10
_BATCH = 256  # keys in one request for values

# The first bytes of programs that may be at the endpoint instead.
_OTHER_PROGRAMS = (
    (b"SSH-", "an ssh server"),
    (b"HTTP", "an HTTP server"),
    (b"\x15\x03", "a TLS server"),
)


class StoreRefusedError(RendezvousError):
    """The server refuses this node, or is not the store of its job; trying again is no use."""


class _Request:
    """A request without a reply yet."""

    def __init__(self, owner: JobStore | None, data: bytes, *, may_repeat: bool) -> None:
        self.owner = owner
        self.data = data
        self.may_repeat = may_repeat  # also in another session
        self.answered = threading.Event()
        self.results: list[Result] = []
        self.error: str = ""

    def fail(self, error: str) -> None:
        """Let the caller raise `error`."""
        self.error = error
        self.answered.set()


class StoreClient:
    """One connection to the store, with one session. Thread-safe.

    If the connection breaks, the client resumes its session over another one within
    `RECONNECT_TIMEOUT`, and sends again what has no reply; the server carries nothing out twice.
    If it cannot, it is broken: all calls raise, and the caller creates another client.

    Args:
        dial: opens a connection within so many seconds; raises OSError.
        authenticator: makes and checks proofs.
        endpoint: the endpoint, for messages.
        request_timeout: seconds after which a request without a reply fails.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dial = dial
        self._authenticator = authenticator
        self.endpoint = endpoint
        self.request_timeout = request_timeout
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
            self._sock = self._open(_GREETING_TIMEOUT)
        except (OSError, ProtocolError) as error:
            raise RendezvousConnectionError(self._describe(error)) from error
        self._thread = threading.Thread(target=self._run, name="plaunch-store", daemon=True)
        self._thread.start()

    def _describe(self, error: BaseException) -> str:
        reason = getattr(error, "strerror", None) or error
        return f"the rendezvous store at {self.endpoint} cannot be reached: {reason}"

    @property
    def is_broken(self) -> bool:
        """Whether no request can succeed any more."""
        return self._is_closed or bool(self._problem)

    def connect(self) -> JobStore:
        """Return a store for one thread."""
        return JobStore(self)

    def close(self) -> None:
        """End the session, so that its keys are deleted. May be called twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._fail_all("the connection is closed")
        with self._send_lock, contextlib.suppress(OSError):
            self._sock.sendall(frames.frame(Kind.BYE))
        self._hang_up()
        self._thread.join(1.0)
        self._sock.close()

    def reset(self) -> None:
        """Connect again, as the server does not answer."""
        self._hang_up()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    # --- requests ---------------------------------------------------------------------------------

    def call(
        self,
        owner: JobStore | None,
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
            Kind.REQUEST, frames.u64(number), frames.encode_operations(operations)
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
            if wait is not None and not request.answered.wait(wait):
                self._send(frames.frame(Kind.CANCEL, frames.u64(number)))
            if not request.answered.wait(self.request_timeout):
                request.error = f"no reply within {self.request_timeout:g} s"
        finally:
            with self._lock:
                self._pending.pop(number, None)
        if request.error:
            raise RendezvousConnectionError(
                f"the rendezvous store at {self.endpoint}: {request.error}"
            )
        return request.results

    def fail(self, owner: JobStore) -> None:
        """End the calls of `owner`; connect again if one of them had no reply."""
        with self._lock:
            own = [request for request in self._pending.values() if request.owner is owner]
        for request in own:
            request.fail("the connection is closed")
        if any(not request.may_repeat for request in own):
            self.reset()

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

    def _read(self) -> None:
        """Receive replies until the connection ends."""
        while True:
            for kind, fields in self._received.frames():
                if kind is Kind.REFUSED:
                    raise ProtocolError(f"the server has ended the connection: {fields.text()}")
                if kind is not Kind.REPLY:
                    raise ProtocolError(f"a server does not send {kind.name}")
                number = fields.u64()
                with self._lock:
                    request = self._pending.get(number)
                if request is not None:  # else the caller has given up
                    request.results = frames.decode_results(fields)
                    request.answered.set()
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
            except (OSError, ProtocolError):
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
                elif not request.answered.is_set():
                    sock.sendall(request.data)
        if self._is_closed:
            self._hang_up()

    def _open(self, timeout: float) -> socket.socket:
        """Connect, greet, and take the session that the server gives."""
        deadline = self._clock() + timeout
        sock = self._dial(timeout)
        try:
            keep_alive(sock, SILENCE_TIMEOUT)
            self._received = FrameBuffer()
            self._greet(sock, deadline)
            sock.settimeout(None)
            # A read waits as long as the connection exists; a write does not.
            limit = struct.pack("ll", max(int(self.request_timeout), 1), 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        except BaseException:
            sock.close()
            raise
        return sock

    def _greet(self, sock: socket.socket, deadline: float) -> None:
        nonce = secrets.token_bytes(frames.NONCE_SIZE)
        sock.settimeout(max(deadline - self._clock(), 0.01))
        versions = frames.u16(frames.OLDEST_VERSION), frames.u16(frames.VERSION)
        session = frames.u8(len(self.session)) + self.session
        sock.sendall(frames.frame(Kind.HELLO, frames.MAGIC, *versions, nonce, session))
        fields = self._expect(sock, Kind.CHALLENGE, deadline)
        fields.take(len(frames.MAGIC))
        fields.u16()
        is_needed = bool(fields.u8())
        server_nonce = fields.take(frames.NONCE_SIZE)
        fields.end()
        if is_needed != self._authenticator.is_needed:
            raise StoreRefusedError(
                f"the rendezvous store at {self.endpoint} "
                + (
                    "needs the token of the job, and this node has none; set PLAUNCH_RDZV_TOKEN, "
                    "or --rdzv-conf token_file"
                    if is_needed
                    else "knows no token, and this node has one; give the same token to all nodes, "
                    "or check that the endpoint is the host of this job"
                )
            )
        sock.sendall(
            frames.frame(Kind.PROOF, self._authenticator.client_proof(nonce, server_nonce))
        )
        fields = self._expect(sock, Kind.WELCOME, deadline)
        proof = fields.take(PROOF_SIZE if is_needed else 0)
        if not is_equal(proof, self._authenticator.server_proof(nonce, server_nonce)):
            raise StoreRefusedError(
                f"the server at {self.endpoint} does not know the token of this job; check that "
                "the endpoint is the host of this job"
            )
        self.session = fields.take(frames.SESSION_SIZE)
        fields.u8()
        fields.end()

    def _expect(self, sock: socket.socket, expected: Kind, deadline: float) -> Fields:
        """Return the message of this kind, which comes next."""
        while True:
            for kind, fields in self._received.frames():
                if kind is Kind.REFUSED:
                    raise StoreRefusedError(
                        f"the rendezvous store at {self.endpoint} refuses this node: "
                        f"{fields.text()}"
                    )
                if kind is not expected:
                    raise ProtocolError(f"{kind.name} instead of {expected.name}")
                return fields
            sock.settimeout(max(deadline - self._clock(), 0.01))
            data = sock.recv(frames.MAX_GREETING)
            if not data:
                raise ProtocolError(
                    "the server closes the connection without an answer, as a TCPStore of torch "
                    "does"
                )
            self._received.feed(data)
            self._recognise(self._received.peek(8))

    def _recognise(self, first: bytes) -> None:
        for beginning, program in _OTHER_PROGRAMS:
            if first.startswith(beginning):
                raise StoreRefusedError(
                    f"the program at {self.endpoint} is {program}, not the rendezvous store of a "
                    "job; choose another port in --rdzv-endpoint"
                )


class JobStore(RendezvousStore):
    """The store as one thread of an agent uses it.

    Args:
        client: the connection, which other stores share.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._is_closed = False
        self._beaten: tuple[bytes, str, bytes] | None = None  # session, key and value

    def set(self, key: str, value: bytes) -> None:
        """Write `value`."""
        self._one(Operation(Code.SET, key, value))

    def add(self, key: str, amount: int) -> int:
        """Add `amount`; the sum is kept as decimal digits."""
        total = self._one(Operation(Code.ADD, key, amount=amount))
        if not isinstance(total, int):
            raise RendezvousConnectionError(f"the store has answered {total!r} to an addition")
        return total

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Write `desired` if `key` holds `expected`; return the value it has then."""
        return self._value(self._one(Operation(Code.COMPARE_SET, key, desired, expected)))

    def multi_get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of all `keys`, with as few requests as their sizes permit."""
        values: list[bytes | None] = []
        for batch in _batches(keys, _BATCH):
            results = self._call([Operation(Code.GET, key) for key in batch])
            if len(batch) > 1 and results[0] == OperationFailed(TOO_LARGE):
                middle = len(batch) // 2
                values += self.multi_get(batch[:middle]) + self.multi_get(batch[middle:])
            else:
                values += [self._value(self._checked(result)) for result in results]
        return values

    def wait(self, key: str, timeout: float) -> bytes | None:
        """Return the value of `key` as soon as it has one; the server wakes this call."""
        results = self._call([Operation(Code.WAIT, key)], max(timeout, 0.0))
        return self._value(self._checked(results[0]))

    def delete(self, key: str) -> None:
        """Remove `key`."""
        self._one(Operation(Code.DELETE, key))

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        """Write all `items`; those of one request at once."""
        batch: list[Operation] = []
        size = 0
        for key, value in items.items():
            if batch and (len(batch) == _BATCH or size + len(value) > frames.MAX_VALUE):
                self._all(batch)
                batch, size = [], 0
            batch.append(Operation(Code.SET, key, value))
            size += len(value) + len(key)
        if batch:
            self._all(batch)

    def beat(self, key: str, value: bytes) -> float | None:
        """Write `value` once per session; the server deletes it when the session ends."""
        beaten = self._client.session, key, value
        if beaten != self._beaten or self._client.is_broken:
            self._one(Operation(Code.HOLD, key, value))
            self._beaten = beaten
        return SILENCE_TIMEOUT

    def close(self) -> None:
        """End the calls of this store, also on other threads; the connection remains."""
        self._is_closed = True
        self._client.fail(self)

    # --- calls ------------------------------------------------------------------------------------

    def _call(self, operations: Sequence[Operation], wait: float | None = None) -> list[Result]:
        for operation in operations:
            _check(operation)
        if self._is_closed:
            raise RendezvousConnectionError(
                f"the connection to the rendezvous store at {self._client.endpoint} is closed"
            )
        results = self._client.call(self, operations, wait)
        if len(results) != len(operations):
            raise RendezvousConnectionError(
                f"the rendezvous store at {self._client.endpoint} has answered {len(results)} of "
                f"{len(operations)} operations"
            )
        return results

    def _one(self, operation: Operation) -> Result:
        return self._checked(self._call([operation])[0])

    def _all(self, operations: Sequence[Operation]) -> None:
        for result in self._call(operations):
            self._checked(result)

    def _checked(self, result: Result) -> Result:
        if isinstance(result, OperationFailed):
            raise RendezvousStateError(
                f"the rendezvous store at {self._client.endpoint}: {result.reason}"
            )
        return result

    def _value(self, result: Result) -> bytes | None:
        if isinstance(result, int):
            raise RendezvousConnectionError(f"the store has answered {result} for a value")
        return result if isinstance(result, bytes) else None


def _batches(keys: Sequence[str], size: int) -> list[Sequence[str]]:
    return [keys[start : start + size] for start in range(0, len(keys), size)]


def _check(operation: Operation) -> None:
    """Check what the server would refuse.

    Raises:
        ValueError: a key or a value is too long, empty, or not printable ASCII.
    """
    key = operation.key
    if not (key.isascii() and key.isprintable() and 0 < len(key) <= frames.MAX_KEY):
        raise ValueError(f"the key {key!r:.100} is not printable ASCII of up to {frames.MAX_KEY}")
    if operation.code in (Code.SET, Code.HOLD, Code.WILL, Code.COMPARE_SET):
        if not operation.value:
            raise ValueError(f"an empty value for {key!r}")
        size = max(len(operation.value), len(operation.expected or b""))
        if size > frames.MAX_VALUE:
            raise ValueError(f"a value of {size} bytes for {key!r}; at most {frames.MAX_VALUE}")
