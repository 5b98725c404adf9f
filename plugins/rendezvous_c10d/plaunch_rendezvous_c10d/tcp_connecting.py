"""Opens connections to a TCPStore: bounded attempts, and messages about what they wait for."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from plaunch.errors import ThreadStartError
from plaunch.process import read_proc
from plaunch.threads import BoundedCall
from plaunch_job_store.client_greeting import StoreRefusedError
from plaunch_job_store.other_programs import is_job_store
from plaunch_network import SocketAddress, create_tcp_store

from plaunch_rendezvous_c10d.endpoint import CONNECT_BOUNDS, HostJobCheck, StoreEndpoint
from plaunch_rendezvous_c10d.resolver import forget_name_servers
from plaunch_rendezvous_c10d.torch_import import FATAL, load_distributed, torch_log
from plaunch_rendezvous_c10d.torch_stores import TcpStore, first_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.rendezvous import Store

_EXIT_PAUSE = 0.02  # seconds, when the process ends
_EXIT_WAIT = CONNECT_BOUNDS.timeout / 2 + 0.5  # seconds, when the process ends


@dataclass(eq=False)
class _Attempt:
    """One call of torch's constructor: the port, and the thread once it has started."""

    port: int
    thread_id: int = 0
    is_abandoned: bool = False
    is_over: bool = False

    def hang_up(self) -> None:
        """Shut down its connection, if it has one; torch retries until its timeout."""
        if self.thread_id and not self.is_over:  # otherwise the id may be another thread's
            hang_up(self.thread_id, self.port)


def _end_at_exit(attempts: list[_Attempt], pid: int) -> None:
    """Wait a few seconds at most for attempts to end when the process exits.

    A thread that is in torch's code when the interpreter exits is unwound through that code, which
    aborts the process. A forked process has none of the threads.
    """
    until = time.monotonic() + _EXIT_WAIT
    while os.getpid() == pid and time.monotonic() < until:
        left = [attempt for attempt in attempts if not attempt.is_over]
        if not left:
            return
        for attempt in left:
            attempt.hang_up()
        time.sleep(_EXIT_PAUSE)


class TcpStoreConnector:
    """Opens connections to the TCPStore at an endpoint. Thread-safe.

    Args:
        endpoint: the endpoint.
        read_timeout: the limit of one operation, in seconds.
        run_id: the id of this job, for a warning if the host's job is another one.
    """

    subscribe = None  # the store does not notice that a node is gone

    def __init__(self, endpoint: StoreEndpoint, read_timeout: float, run_id: str = "") -> None:
        self.endpoint = endpoint
        self._bounds = endpoint.bounds
        self._read_timeout = read_timeout
        self._host_job = HostJobCheck(endpoint, run_id)
        self._lock = threading.Lock()
        self._attempts: list[_Attempt] = []  # attempts that have not ended
        # Runs after the handler's exit function, which is registered later and ends the threads
        # that start attempts.
        weakref.finalize(self, _end_at_exit, self._attempts, os.getpid())

    def connect(self) -> TcpStore:
        """Try once, for about `bounds.timeout` seconds at most; the caller retries.

        Raises:
            RendezvousConnectionError: see `StoreEndpoint.dial`.
        """
        store = TcpStore(self._try_once(), self.endpoint.name, self._read_timeout)
        self._host_job.run(store)
        return store

    def open_store(self, prefix: str) -> Store:
        """Return torch's PrefixStore for programs; its waits have only torch's own limits.

        Raises:
            RendezvousConnectionError: as `connect` does.
        """
        client = self._try_once()
        client.set_timeout(timedelta(seconds=self._read_timeout))
        store: Store = load_distributed().PrefixStore(prefix, client)
        return store

    def has_lost_data(self) -> bool:
        """False: the store ends with the process that hosts it."""
        return False

    def close(self) -> None:
        """Nothing: each connection belongs to its user."""

    def _try_once(self) -> Any:
        deadline = time.monotonic() + self._bounds.timeout
        # torch would retry a refused connection, and print that.
        with self.endpoint.dial(self._bounds.timeout) as sock:
            address = SocketAddress(sock.family, sock.getpeername())
        client = self._open(address, deadline)
        self.endpoint.note_connected()
        return client

    def _open(self, address: SocketAddress, deadline: float) -> Any:
        """Create torch's client for the store at `address`, which accepts connections.

        torch's constructor waits forever for a program that accepts connections and sends nothing.
        It therefore runs on a thread that is abandoned in that case, and its connection is shut
        down, because the peer, such as a proxy, may keep it open.
        """
        self._hang_up()
        timeout = max(deadline - time.monotonic(), self._bounds.min_timeout)
        # Within this time the constructor retries by itself when its connection is closed.
        torch_timeout = min(self._bounds.timeout / 2, timeout)
        attempt = _Attempt(address.port)
        with self._lock:
            is_full = len(self._attempts) >= self._bounds.max_stuck
            if not is_full:
                self._attempts.append(attempt)
        if is_full:
            raise self.endpoint.unreachable(self._silent(address))

        distributed = load_distributed()

        def create() -> Any:
            attempt.thread_id = threading.get_native_id()
            try:
                with torch_log().limited(FATAL):
                    return create_tcp_store(
                        distributed.TCPStore,
                        host_name=address.host,
                        port=address.port,
                        is_master=False,
                        wait_for_workers=False,
                        timeout=timedelta(seconds=torch_timeout),
                    )
            finally:
                self._end(attempt)

        try:
            return run_bounded(create, timeout, "connect")
        except TimeoutError as error:
            attempt.is_abandoned = True
            self._hang_up()
            self._refuse_job_store()
            raise self.endpoint.unreachable(self._silent(address)) from error
        except ThreadStartError:
            self._end(attempt)
            raise
        except (RuntimeError, OSError, ValueError) as error:
            self._refuse_job_store()
            raise self.endpoint.unreachable(f"{address}: {first_line(error)}") from error

    def _refuse_job_store(self) -> None:
        """Raise an error if the program at the endpoint is the store of a job of plaunch."""
        if is_job_store(self.endpoint.dial):
            raise StoreRefusedError(
                f"the program at {self.endpoint.name} is the store of a plaunch job, not a "
                "TCPStore of torch; leave --rdzv-conf store=torch out on this node, or give it "
                "to all nodes"
            )

    def _hang_up(self) -> None:
        """Shut down the connections of abandoned attempts, so that their threads end."""
        with self._lock:
            for attempt in self._attempts:
                if attempt.is_abandoned:
                    attempt.hang_up()

    def _end(self, attempt: _Attempt) -> None:
        with self._lock:
            attempt.is_over = True
            self._attempts.remove(attempt)

    def _silent(self, address: SocketAddress) -> str:
        return (
            f"{address} takes connections but does not answer like a TCPStore: its host is "
            "stopped, or the port belongs to another program"
        )


def run_bounded(function: Callable[[], Any], timeout: float, name: str) -> Any:
    """Run `function`, a call of torch, on a thread, because it cannot be interrupted.

    A result that arrives after `timeout` seconds is discarded.

    Raises:
        TimeoutError: it has not returned in time. Exceptions of `function` are raised as well.
    """

    def run() -> Any:
        forget_name_servers()
        return function()

    call = BoundedCall(name, run)
    if not call.wait(timeout):
        raise TimeoutError(f"{name} has not returned within {timeout:g} s")
    if call.error is not None:
        raise call.error
    return call.result


def hang_up(thread_id: int, port: int) -> bool:
    """Shut down the connection on which a thread of this process receives.

    The constructor of torch's client reveals no socket before it has had an answer. But the kernel
    shows in which system call a thread is; its first argument is the socket.

    Args:
        thread_id: the kernel's id of the thread.
        port: the peer's port; other connections of the thread are left alone.

    Returns:
        Whether there was one. False if the kernel does not show it.
    """
    try:
        words = read_proc(f"self/task/{thread_id}/syscall").split()
        # "running", or the number of the system call, its arguments, and two addresses.
        with socket.socket(fileno=os.dup(int(words[1], 16))) as sock:
            if sock.getpeername()[1] != port:
                return False
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            return True
    except (OSError, IndexError, ValueError, OverflowError, TypeError):
        return False
