"""Opens connections to a TCPStore: bounded attempts, and messages about what they wait for."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
import time
import weakref
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from plaunch.errors import RendezvousConnectionError, ThreadStartError
from plaunch.process import read_proc
from plaunch.threads import BoundedCall
from plaunch_network import interface_addresses, is_loop_back, join_host_port, resolve_host

from plaunch_rendezvous_c10d.resolver import forget_name_servers
from plaunch_rendezvous_c10d.stores import TcpStore, first_line
from plaunch_rendezvous_c10d.torch_import import FATAL, load_distributed, torch_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_network import SocketAddress

_log = logging.getLogger("plaunch")

JOB_OF_HOST = "plaunch/host/job"  # the key of the run id of the host's job
_MAX_NAME_LENGTH = 200  # of a run id in a message
_EXIT_PAUSE = 0.02  # seconds, when the process ends
_WARN_AFTER, _WARN_INTERVAL = 10.0, 60.0  # seconds


@dataclass(frozen=True)
class ConnectBounds:
    """The bounds of connecting; tests use smaller ones.

    Args:
        timeout: seconds for one attempt.
        min_timeout: seconds for an answer, even if connecting took longer.
        max_stuck: the number of attempts that may be stuck in torch.
    """

    timeout: float = 5.0
    min_timeout: float = 1.0
    max_stuck: int = 16


CONNECT_BOUNDS = ConnectBounds()
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


class Connector:
    """Opens connections to the TCPStore at an endpoint. Thread-safe.

    Args:
        host: the endpoint's host; resolved each time, because addresses change.
        port: the endpoint's port.
        read_timeout: the limit of one operation, in seconds.
        here: whether the endpoint is this machine, so that loopback reaches it too.
        advice: a hint for messages if no node hosts the store.
        run_id: the id of this job, for a warning if the host's job is another one.
        bounds: the bounds of one attempt.
        clock: a monotonic clock in seconds, for messages.
    """

    def __init__(
        self,
        host: str,
        port: int,
        read_timeout: float,
        *,
        here: bool = False,
        advice: str = "",
        run_id: str = "",
        bounds: ConnectBounds = CONNECT_BOUNDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = join_host_port(host, port)
        self._bounds = bounds
        self._clock = clock
        self._host = host
        self._port = port
        self._read_timeout = read_timeout
        self._here = here
        self._advice = advice
        self._run_id = run_id
        self._knows_host = not run_id
        self._lock = threading.Lock()
        self._attempts: list[_Attempt] = []  # attempts that have not ended
        # Runs after the handler's exit function, which is registered later and ends the threads
        # that start attempts.
        weakref.finalize(self, _end_at_exit, self._attempts, os.getpid())
        self._has_connected = False
        self._failing_since: float | None = None
        self._warn_at = 0.0

    def connect(self) -> TcpStore:
        """Try once, for about `bounds.timeout` seconds at most; the caller retries.

        After ten seconds of failures, and then once a minute, a message describes what it waits
        for, unless the agent does.

        Raises:
            RendezvousConnectionError: with all addresses that were tried, and the error of each.
        """
        store = TcpStore(self._try_once(), self.endpoint, self._read_timeout)
        self._check_host(store)
        return store

    def connect_client(self) -> Any:
        """Return torch's TCPStore for programs; its waits have only torch's own limits.

        Raises:
            RendezvousConnectionError: as `connect` does.
        """
        client = self._try_once()
        client.set_timeout(timedelta(seconds=self._read_timeout))
        return client

    def _try_once(self) -> Any:
        deadline = time.monotonic() + self._bounds.timeout
        try:
            opened = self._open(self._reach(deadline), deadline)
        except RendezvousConnectionError as error:
            self._note_failure(error)
            raise
        with self._lock:
            self._failing_since = None
            self._has_connected = True
        return opened

    def _check_host(self, store: TcpStore) -> None:
        """Warn once if the store is hosted by, and ends with, another job."""
        with self._lock:
            if self._knows_host:
                return
            self._knows_host = True
        try:
            (held,) = store.multi_get([JOB_OF_HOST])
        except RendezvousConnectionError:
            return  # the caller's own operation will fail, too
        if held is None or held == self._run_id.encode():
            return
        _log.warning(
            "the store at %s is hosted by a launcher of another job, %r, and ends with that job; "
            "job %r would then end with exit code 113. Give this job an --rdzv-endpoint of its own",
            self.endpoint,
            held.decode(errors="replace")[:_MAX_NAME_LENGTH],
            self._run_id,
        )

    def _reach(self, deadline: float) -> SocketAddress:
        """Return the first address of the endpoint that accepts a connection."""
        tried = []
        timeout = self._bounds.timeout / 2
        for address in self._addresses(timeout):
            left = min(timeout, deadline - time.monotonic())
            if left <= 0:
                tried.append(f"{address}: not tried, no time is left")
                continue
            try:
                with socket.socket(address.family, socket.SOCK_STREAM) as sock:
                    sock.settimeout(left)
                    sock.connect(address.sockaddr)
                return address
            except TimeoutError:
                tried.append(f"{address}: no answer within {left:.1f} s")
            except OSError as error:
                tried.append(f"{address}: {_errno_of(error)}")
        raise self._unreachable("; ".join(tried) or "it has no addresses")

    def _addresses(self, timeout: float) -> list[SocketAddress]:
        near = (
            [*resolve_host("127.0.0.1", self._port), *resolve_host("::1", self._port)]
            if self._here
            else []
        )
        try:
            far = resolve_host(self._host, self._port, timeout)
        except RendezvousConnectionError as error:
            if not near:
                raise self._unreachable(str(error)) from error
            far = ()
        return [*far, *(address for address in near if address not in far)]

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
            raise self._unreachable(self._silent(address))

        distributed = load_distributed()

        def create() -> Any:
            attempt.thread_id = threading.get_native_id()
            try:
                with torch_log().limited(FATAL):
                    return distributed.TCPStore(
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
            raise self._unreachable(self._silent(address)) from error
        except ThreadStartError:
            self._end(attempt)
            raise
        except (RuntimeError, OSError, ValueError) as error:
            raise self._unreachable(f"{address}: {first_line(error)}") from error

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

    def _unreachable(self, what: str) -> RendezvousConnectionError:
        with self._lock:
            since = self._failing_since
        long = f", for {self._clock() - since:.0f} s so far" if since is not None else ""
        own = ", ".join(a for a in interface_addresses() if not is_loop_back(a)) or "loopback only"
        text = f"rendezvous store {self.endpoint!r} cannot be reached{long}: {what}"
        if not self._has_connected:
            # After a first success, the endpoint is right.
            text += f". This machine is {os.uname().nodename!r} ({own}){self._advice}"
        return RendezvousConnectionError(text)

    def _note_failure(self, error: RendezvousConnectionError) -> None:
        now = self._clock()
        with self._lock:
            if self._failing_since is None:
                self._failing_since = now
                self._warn_at = now + _WARN_AFTER
            if now < self._warn_at:
                return
            self._warn_at = now + _WARN_INTERVAL
        # The agent reports the wait for the first connection, unless its log level hides that.
        if self._has_connected or not _log.isEnabledFor(logging.INFO):
            _log.warning("waiting for the store: %s", error)


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


def _errno_of(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "")
    return f"{error.strerror or error}{f' ({name})' if name else ''}"


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
