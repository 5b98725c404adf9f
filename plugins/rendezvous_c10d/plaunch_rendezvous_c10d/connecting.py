"""Opening a connection to a TCPStore: bounded attempts, and saying what they wait for."""

from __future__ import annotations

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
from plaunch.threads import BoundedCall
from plaunch_network import interface_addresses, is_loop_back, join_host_port, resolve_host

from plaunch_rendezvous_c10d.resolver import forget_name_servers
from plaunch_rendezvous_c10d.stores import TcpStore, first_line
from plaunch_rendezvous_c10d.stuck import hang_up
from plaunch_rendezvous_c10d.torch_log import torch_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_network import SocketAddress

_log = logging.getLogger("plaunch")

CONNECT_TIMEOUT = 5.0  # seconds for all of one attempt
JOB_OF_HOST = "plaunch/host/job"  # the key of the run id of the host's job
_LEAST_PATIENCE = 1.0  # seconds for an answer, however long the connection has taken
_MOST_NAME = 200  # characters of a run id in a message
_EXIT_WAIT, _EXIT_PAUSE = CONNECT_TIMEOUT / 2 + 0.5, 0.02  # seconds, when the process ends
_MOST_HANGING = 16  # attempts that are stuck in torch at a time
_SAID_AFTER, _SAID_EVERY = 10.0, 60.0  # seconds


@dataclass(eq=False)
class _Attempt:
    """One call of torch's constructor: whom it asks, and on which thread, once it has begun."""

    port: int
    thread_id: int = 0
    is_abandoned: bool = False
    is_over: bool = False

    def hang_up(self) -> None:
        """End its connection, if it has one; torch tries again until its time-out."""
        if self.thread_id and not self.is_over:  # else the number may be another thread's
            hang_up(self.thread_id, self.port)


def _end_at_exit(attempts: list[_Attempt], pid: int) -> None:
    """Wait for the end of attempts, a few seconds at most, when the process ends.

    A thread that is in torch's code when the interpreter ends is unwound through that code, which
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
    """Opens connections to the TCPStore at an endpoint; `connect` may be called by any thread.

    Args:
        distributed: the module `torch.distributed`.
        host: the endpoint's host; resolved each time, because addresses change.
        port: the endpoint's port.
        read_timeout: how long one operation may take, in seconds.
        here: whether the endpoint is this machine, so that loopback leads there as well.
        advice: what messages suggest if no node hosts the store.
        run_id: the id of this job, for a warning if the host's is another one.
    """

    def __init__(
        self,
        distributed: Any,
        host: str,
        port: int,
        read_timeout: float,
        *,
        here: bool = False,
        advice: str = "",
        run_id: str = "",
    ) -> None:
        self.endpoint = join_host_port(host, port)
        self._distributed = distributed
        self._host = host
        self._port = port
        self._read_timeout = read_timeout
        self._here = here
        self._advice = advice
        self._run_id = run_id
        self._knows_host = not run_id
        self._lock = threading.Lock()
        self._attempts: list[_Attempt] = []  # that have not ended
        # The handler's threads, which begin more of them, end before: they are registered later.
        weakref.finalize(self, _end_at_exit, self._attempts, os.getpid())
        self._has_connected = False
        self._failing_since: float | None = None
        self._say_at = 0.0

    def connect(self) -> TcpStore:
        """Try once, for about `CONNECT_TIMEOUT` seconds at most; the caller tries again.

        What it waits for is said after ten seconds of failures and then once a minute, in the
        words of those who wait for a round.

        Raises:
            RendezvousConnectionError: with all addresses that were tried, and what each said.
        """
        store = TcpStore(self._try_once(), self.endpoint, self._read_timeout)
        self._look_at_host(store)
        return store

    def connect_client(self) -> Any:
        """Return a TCPStore of torch's for programs, whose waits have no other bound than torch's.

        Raises:
            RendezvousConnectionError: as `connect` does.
        """
        client = self._try_once()
        client.set_timeout(timedelta(seconds=self._read_timeout))
        return client

    def _try_once(self) -> Any:
        deadline = time.monotonic() + CONNECT_TIMEOUT
        try:
            opened = self._open(self._reach(deadline), deadline)
        except RendezvousConnectionError as error:
            self._note_failure(error)
            raise
        with self._lock:
            self._failing_since = None
            self._has_connected = True
        return opened

    def _look_at_host(self, store: TcpStore) -> None:
        """Warn, once, if the store will end with another job than ours."""
        with self._lock:
            if self._knows_host:
                return
            self._knows_host = True
        try:
            (held,) = store.multi_get([JOB_OF_HOST])
        except RendezvousConnectionError:
            return  # whoever wanted the connection will find out, too
        if held is None or held == self._run_id.encode():
            return
        _log.warning(
            "the store at %s is hosted by a launcher of another job, %r, and ends with that job; "
            "job %r would then end with exit code 113. Give this job an --rdzv-endpoint of its own",
            self.endpoint,
            held.decode(errors="replace")[:_MOST_NAME],
            self._run_id,
        )

    def _reach(self, deadline: float) -> SocketAddress:
        """The first address of the endpoint that takes a connection."""
        tried = []
        timeout = CONNECT_TIMEOUT / 2
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
        """The client, of torch's making, of the store at `address`, which takes connections.

        Its constructor waits without end for a program that takes connections and says nothing, so
        it runs on a thread that is left behind then, and its connection is ended: it may be kept
        open for ever, as by a proxy.
        """
        self._hang_up()
        patience = max(deadline - time.monotonic(), _LEAST_PATIENCE)
        # Within this time the constructor tries again by itself when a connection is ended.
        again = min(CONNECT_TIMEOUT / 2, patience)
        attempt = _Attempt(address.port)
        with self._lock:
            is_full = len(self._attempts) >= _MOST_HANGING
            if not is_full:
                self._attempts.append(attempt)
        if is_full:
            raise self._unreachable(self._silent(address))

        def create() -> Any:
            attempt.thread_id = threading.get_native_id()
            try:
                with torch_log().silenced():
                    return self._distributed.TCPStore(
                        host_name=address.host,
                        port=address.port,
                        is_master=False,
                        wait_for_workers=False,
                        timeout=timedelta(seconds=again),
                    )
            finally:
                self._end(attempt)

        try:
            return run_bounded(create, patience, "connect")
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
        """End the connections of attempts that nobody waits for, so that their threads end."""
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
        long = f", for {time.monotonic() - since:.0f} s so far" if since is not None else ""
        own = ", ".join(a for a in interface_addresses() if not is_loop_back(a)) or "loopback only"
        text = f"rendezvous store {self.endpoint!r} cannot be reached{long}: {what}"
        if not self._has_connected:
            # Later on it is not the endpoint that is wrong.
            text += f". This machine is {os.uname().nodename!r} ({own}){self._advice}"
        return RendezvousConnectionError(text)

    def _note_failure(self, error: RendezvousConnectionError) -> None:
        now = time.monotonic()
        with self._lock:
            if self._failing_since is None:
                self._failing_since = now
                self._say_at = now + _SAID_AFTER
            if now < self._say_at:
                return
            self._say_at = now + _SAID_EVERY
        # Whoever waits for the first connection is told by the agent, unless only warnings count.
        if self._has_connected or not _log.isEnabledFor(logging.INFO):
            _log.warning("waiting for the store: %s", error)


def run_bounded(function: Callable[[], Any], timeout: float, name: str) -> Any:
    """Run `function`, a call of torch, on a thread of its own, since it cannot be interrupted.

    A result that comes after `timeout` seconds is thrown away.

    Raises:
        TimeoutError: it has not returned in time. Whatever it raises is raised as well.
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
