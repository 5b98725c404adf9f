"""Real jobs of many nodes in this process, over a real server: what the model is compared with."""

from __future__ import annotations

import gc
import os
import resource
import socket
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.rendezvous import TOKEN_VARIABLE, RendezvousParameters
from plaunch_job_store.authentication import Authenticator
from plaunch_job_store.client import StoreClient
from plaunch_job_store.host import StoreProcess
from plaunch_job_store.store import JobStore
from plaunch_membership import DynamicRendezvousHandler, StoreAccess, Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch_job_store.frames import Operation, Result

_TOKEN = b"0123456789abcdef" * 4
_RUN_ID = "scale"
_LIMIT = 600.0  # seconds
_STACK = 256 << 10  # bytes for each of thousands of threads
_SWITCH_INTERVAL = 0.2  # seconds; threads that wait for Python's lock ask for it so often
_FILES_PER_NODE = 3  # of this process
_SPARE_FILES = 256
_THREADS_PER_NODE = 5


@dataclass(frozen=True)
class RealRun:
    """What the first round of a job has cost.

    Args:
        nodes: their number.
        seconds: from the first node's call to the last one's return.
        server_cpu: seconds of the server.
        nodes_cpu: seconds of all nodes.
        requests: of a node, without heartbeats.
        bytes: of these requests and their replies, of a node.
    """

    nodes: int
    seconds: float
    server_cpu: float
    nodes_cpu: float
    requests: float
    bytes: float


class CountingClient(StoreClient):
    """Counts the requests and the bytes of all clients of this process."""

    counts: Counter[str]  # set before the first client is made

    def call(
        self, owner: object, operations: Sequence[Operation], wait: float | None = None
    ) -> list[Result]:
        """Send operations, and return their results."""
        self.counts["requests"] += 1
        return super().call(owner, operations, wait)

    def _write(self, data: bytes) -> None:
        self.counts["bytes"] += len(data)
        super()._write(data)

    def _receive(self) -> None:
        before = len(self._received)
        super()._receive()
        self.counts["bytes"] += len(self._received) - before


def why_not(nodes: int) -> str:
    """Return why this machine cannot run so many nodes in one process; empty if it can."""
    files = nodes * _FILES_PER_NODE + _SPARE_FILES
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < files:
        return f"they need {files} open files, and {most} are allowed"
    with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
        threads = int(file.read())
    if threads < nodes * _THREADS_PER_NODE:
        return f"they need {nodes * _THREADS_PER_NODE} threads, and {threads} are possible"
    return ""


def form_round(nodes: int) -> RealRun:
    """Let so many nodes join at once, each with the threads and the connection of a real one."""
    files = nodes * _FILES_PER_NODE + _SPARE_FILES
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), most))
    threading.stack_size(_STACK)
    os.environ[TOKEN_VARIABLE] = _TOKEN.decode()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    server = StoreProcess(listener, _TOKEN, _RUN_ID, environ={})
    CountingClient.counts = Counter()
    handlers = [_create_handler(server.port, nodes) for _ in range(nodes)]
    try:
        return _form(handlers, server)
    finally:
        _release(handlers)
        server.close()
        sys.setswitchinterval(interval)


def _create_handler(port: int, nodes: int) -> DynamicRendezvousHandler:
    """Create a node with one connection, which its threads share."""
    authenticator = Authenticator(_TOKEN, _RUN_ID)
    endpoint = f"127.0.0.1:{port}"
    listeners: list[Callable[[], None]] = []
    lock = threading.Lock()
    clients: list[StoreClient] = []

    def notify() -> None:
        for listener in listeners:
            listener()

    def connect() -> JobStore:
        with lock:
            if not clients:
                clients.append(
                    CountingClient(
                        lambda timeout: socket.create_connection(("127.0.0.1", port), timeout),
                        authenticator,
                        endpoint,
                        _LIMIT,
                        on_loss=notify,
                        connect_timeout=_LIMIT,
                    )
                )
        return JobStore(clients[0])

    def release() -> None:
        for client in clients:
            client.close()

    access = StoreAccess(
        connect,
        "127.0.0.1",
        endpoint,
        release=release,
        subscribe=listeners.append,
    )
    params = RendezvousParameters("c10d", endpoint, _RUN_ID, nodes, nodes, "127.0.0.1")
    return DynamicRendezvousHandler(params, access, timing=Timing(keep_alive_interval=60.0))


def _form(handlers: Sequence[DynamicRendezvousHandler], server: StoreProcess) -> RealRun:
    barrier = threading.Barrier(len(handlers) + 1)
    ended: list[float] = []
    errors: list[BaseException] = []

    def join(handler: DynamicRendezvousHandler) -> None:
        try:
            barrier.wait(_LIMIT)
            handler.next_rendezvous()
            ended.append(time.perf_counter())
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=join, args=(handler,), daemon=True) for handler in handlers]
    gc.collect()
    gc.freeze()
    for thread in threads:
        thread.start()
    clock = (~server.pid << 3) | 2  # of the server's process
    server_cpu, own = time.clock_gettime(clock), time.process_time()
    barrier.wait(_LIMIT)
    began = time.perf_counter()
    for thread in threads:
        thread.join(_LIMIT)
    gc.unfreeze()
    if errors:
        raise errors[0]
    counts = CountingClient.counts
    return RealRun(
        len(handlers),
        max(ended) - began,
        time.clock_gettime(clock) - server_cpu,
        time.process_time() - own,
        counts["requests"] / len(handlers),
        counts["bytes"] / len(handlers),
    )


def _release(handlers: Sequence[DynamicRendezvousHandler]) -> None:
    handlers[0].set_closed()
    deadline = time.monotonic() + _LIMIT
    while not all(handler.is_closed() for handler in handlers) and time.monotonic() < deadline:
        time.sleep(0.05)
    threads = [threading.Thread(target=handler.shutdown) for handler in handlers[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LIMIT)
    handlers[0].shutdown()
