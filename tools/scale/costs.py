"""Measures what the server and the client of a job's store cost on this machine."""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch_job_store import frames
from plaunch_job_store.authentication import Authenticator
from plaunch_job_store.client import StoreClient
from plaunch_job_store.client_greeting import ClientGreeting
from plaunch_job_store.frames import Code, MessageKind, Operation
from plaunch_job_store.host import StoreProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TOKEN = b"0123456789abcdef" * 4
_RUN_ID = "scale"
_CLIENTS = 8  # that call at once, so that the server always has something to do
_GREETINGS = 1000
_REQUESTS = 3000
_OPERATIONS = 256  # of a large request
_VALUE = b"v" * 400  # bytes, about those of a node's record
_LARGE = 256 << 10  # bytes
_TIMEOUT = 60.0  # seconds
_IDLE = 0.001  # seconds of CPU time for two small requests; with others it is more


@dataclass(frozen=True)
class StoreCosts:
    """CPU time in seconds, unless another unit is given.

    Args:
        greeting: of the server, from the connection to the session.
        end: of the server, for a connection that ends without BYE, and its session.
        request: of the server, for a request and its reply, without operations.
        operation: of the server, for an operation of a large request.
        write: of the server, for a request that writes one value, beside `request`.
        byte: of the server, for each byte that it receives or sends.
        wait: of the server, for a wait that begins.
        wake: of the server, for each of many clients that wait for the same key.
        start: seconds until a new server answers.
        client_greeting: of the client.
        client_request: of the client, for a request and its reply.
        connection_bytes: memory of the server for a session with a heartbeat, in bytes.
        server_bytes: memory of a server without clients, in bytes.
    """

    greeting: float
    end: float
    request: float
    operation: float
    write: float
    byte: float
    wait: float
    wake: float
    start: float
    client_greeting: float
    client_request: float
    connection_bytes: int
    server_bytes: int


def measure_costs(waiters: int = 1024, repeat: int = 5) -> StoreCosts:
    """Measure all costs, each as the least of some runs: other programs can only add to it."""
    runs = [_measure(waiters) for _ in range(repeat)]
    columns = zip(*(tuple(vars(run).values()) for run in runs), strict=True)
    return StoreCosts(*map(min, columns))


def measure_wakes(waiters: int, repeat: int = 3) -> float:
    """Return the least CPU time of the server for each of so many clients that wait for a key."""
    found = []
    for _ in range(repeat):
        with _Server() as server:
            found.append(_measure_wakes(server, waiters)[1])
    return min(found)


class _Server:
    """A server in a process of its own, and clients of it."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        began = time.perf_counter()
        self._process = StoreProcess(listener, _TOKEN, _RUN_ID, environ={})
        self._authenticator = Authenticator(_TOKEN, _RUN_ID)
        self.pid = self._process.pid
        self._own = self.greet()
        self.start = time.perf_counter() - began

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._own.close()
        self._process.close()

    @property
    def cpu(self) -> float:
        """The CPU time of the process, in seconds."""
        return time.clock_gettime((~self.pid << 3) | 2)  # the clock of a process, see clock_getres

    @property
    def memory(self) -> int:
        """The resident memory of the process, in bytes."""
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def dial(self, timeout: float = _TIMEOUT) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._process.port), timeout)

    def greet(self) -> socket.socket:
        """Return a connection with a session."""
        sock = self.dial()
        deadline = time.monotonic() + _TIMEOUT
        ClientGreeting(sock, self._authenticator, "the server", deadline).greet(b"")
        return sock

    def client(self) -> StoreClient:
        return StoreClient(self.dial, self._authenticator, "the server", _TIMEOUT)

    def settle(self) -> None:
        """Wait until the server has nothing to do but to answer this."""
        spent = _IDLE
        while spent >= _IDLE:
            spent = -self.cpu
            for _ in range(2):
                _request(self._own, Operation(Code.GET, "none"))
            spent += self.cpu


def _measure(waiters: int) -> StoreCosts:
    with _Server() as server:
        server_bytes = server.memory
        greeting, client_greeting, end, connection_bytes = _measure_greetings(server)
        clients = [server.client() for _ in range(_CLIENTS)]

        def cost(operations: Sequence[Operation], number: int = _REQUESTS) -> tuple[float, float]:
            return _measure_calls(server, clients, operations, number)

        get = Operation(Code.GET, "none")
        request, client_request = cost([get])
        large, _ = cost([get] * _OPERATIONS, _REQUESTS // 10)
        operation = (large - request) / (_OPERATIONS - 1)
        write = cost([Operation(Code.SET, "one", _VALUE)])[0] - request
        byte = (cost([Operation(Code.SET, "two", b"v" * _LARGE)], 200)[0] - request) / _LARGE
        for client in clients:
            client.close()
        wait, wake = _measure_wakes(server, waiters)
        return StoreCosts(
            greeting=greeting,
            end=end,
            request=request - operation,
            operation=operation,
            write=max(write, 0.0),
            byte=max(byte, 0.0),
            wait=wait,
            wake=wake,
            start=server.start,
            client_greeting=client_greeting,
            client_request=client_request,
            connection_bytes=connection_bytes,
            server_bytes=server_bytes,
        )


def _measure_greetings(server: _Server) -> tuple[float, float, float, int]:
    """Return what a greeting costs the server and the client, what its end costs, and its bytes."""
    server.settle()
    memory, cpu, own = server.memory, server.cpu, time.process_time()
    socks: list[socket.socket] = []

    def greet() -> None:
        socks.append(server.greet())

    _at_once(greet, _GREETINGS)
    server.settle()
    greeting, client_greeting = server.cpu - cpu, time.process_time() - own
    for number, sock in enumerate(socks):
        _request(sock, Operation(Code.HOLD, f"beat/{number}", b"b" * 100))
    server.settle()
    memory, cpu = server.memory - memory, server.cpu
    for sock in socks:
        sock.close()
    time.sleep(0.5)  # until the sessions cannot be resumed any more
    server.settle()
    end = (server.cpu - cpu) / _GREETINGS
    return greeting / _GREETINGS, client_greeting / _GREETINGS, end, memory // _GREETINGS


def _measure_calls(
    server: _Server, clients: Sequence[StoreClient], operations: Sequence[Operation], number: int
) -> tuple[float, float]:
    """Return what a request costs the server and its client."""
    places = iter(clients * number)
    for client in clients:
        client.call(None, operations)
    server.settle()
    cpu, own = server.cpu, time.process_time()
    _at_once(lambda: next(places).call(None, operations), number)
    own = time.process_time() - own
    server.settle()
    return (server.cpu - cpu) / number, own / number


def _measure_wakes(server: _Server, waiters: int) -> tuple[float, float]:
    """Return what a wait costs the server as it begins, and as it ends."""
    socks = [server.greet() for _ in range(waiters)]
    server.settle()
    cpu = server.cpu
    for sock in socks:
        _request(sock, Operation(Code.WAIT, "awaited"), is_answered=False)
    server.settle()
    wait, cpu = server.cpu - cpu, server.cpu
    with server.greet() as sock:
        _request(sock, Operation(Code.SET, "awaited", _VALUE))
    for sock in socks:
        if len(sock.recv(4096)) < len(_VALUE):
            raise RuntimeError("a client that waited was not woken")
    server.settle()
    wake = server.cpu - cpu
    for sock in socks:
        sock.close()
    return wait / waiters, wake / waiters


def _request(sock: socket.socket, operation: Operation, *, is_answered: bool = True) -> None:
    sock.sendall(
        frames.frame(MessageKind.REQUEST, frames.u64(1), frames.encode_operations([operation]))
    )
    if is_answered:
        sock.recv(4096)


def _at_once(call: Callable[[], object], number: int) -> None:
    """Call it so many times, on some threads."""
    errors: list[BaseException] = []

    def repeat() -> None:
        try:
            for _ in range(number // _CLIENTS):
                call()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=repeat) for _ in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
