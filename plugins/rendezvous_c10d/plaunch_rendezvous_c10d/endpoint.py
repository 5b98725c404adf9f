"""The endpoint of a store: connects to it, and explains why that fails."""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousConnectionError, UsageError
from plaunch.texts import printable
from plaunch_job_store.identity import IDENTITY, JOB_OF_HOST
from plaunch_membership import StoreNotListeningError
from plaunch_network import (
    interface_addresses,
    is_loop_back,
    is_used_by,
    join_host_port,
    port_owner,
    resolve_host,
)

if TYPE_CHECKING:
    from plaunch_membership import RendezvousStore
    from plaunch_network import SocketAddress

# The command lines of processes that host a store: launchers, and the store's own process.
_LAUNCHERS = re.compile(rb"plaunch_job_store|(?:^|[\0/])(?:plaunch|torchrun|plaunch_torchrun)\0")

_log = logging.getLogger("plaunch")

_MAX_NAME_LENGTH = 200  # of a run id in a message


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


class StoreEndpoint:
    """The endpoint of a store. Thread-safe.

    Args:
        host: the host; resolved each time, because addresses change.
        port: the port.
        here: whether the endpoint is this machine, so that loopback reaches it too.
        advice: a hint for messages if no node hosts the store.
        bounds: the bounds of one attempt.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        here: bool = False,
        advice: str = "",
        bounds: ConnectBounds = CONNECT_BOUNDS,
    ) -> None:
        self.name = join_host_port(host, port)
        self.bounds = bounds
        self._host = host
        self._port = port
        self._here = here
        self._advice = advice
        self._has_connected = False
        self._store_host = ""

    def note_connected(self) -> None:
        """Note that a store answers here; errors then give no advice about the endpoint."""
        self._has_connected = True

    def note_host(self, identity: str) -> None:
        """Note which process hosts the store, for errors after it is lost."""
        self._store_host = identity

    def dial(self, timeout: float) -> socket.socket:
        """Connect to the first address that accepts a connection.

        Args:
            timeout: seconds for all addresses; one of them takes half of it at most.

        Raises:
            StoreNotListeningError: its host refuses the connection.
            RendezvousConnectionError: it cannot be reached. Both name all addresses that were
                tried, and the error of each.
        """
        deadline = time.monotonic() + timeout
        tried = []
        is_refused = True
        for address in self._addresses(timeout / 2):
            left = min(timeout / 2, deadline - time.monotonic())
            if left <= 0:
                tried.append(f"{address}: not tried, no time is left")
                continue
            sock = socket.socket(address.family, socket.SOCK_STREAM)
            try:
                sock.settimeout(left)
                sock.connect(address.sockaddr)
            except OSError as error:
                sock.close()
                is_refused &= error.errno == errno.ECONNREFUSED
                tried.append(f"{address}: {_describe(error, left)}")
            else:
                return sock
        raise self.unreachable(
            "; ".join(tried) or "it has no addresses", is_refused=bool(tried) and is_refused
        )

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
                raise self.unreachable(str(error)) from error
            far = ()
        return [*far, *(address for address in near if address not in far)]

    def refuse_other_program(self, error: RendezvousConnectionError) -> None:
        """Raise an error if a program of this machine that is not plaunch has the port.

        Args:
            error: of an attempt to which the program did not answer.

        Raises:
            UsageError: such a program has the port.
        """
        owner = port_owner(self._port) if self._here else ""
        if owner and not is_used_by(_LAUNCHERS, self._port):
            raise UsageError(
                f"the rendezvous store {self.name!r} cannot be used: the port is taken by {owner}, "
                "which takes connections and does not answer as the store of a job does; end that "
                "program, or choose another port in --rdzv-endpoint"
            ) from error

    def unreachable(self, what: str, *, is_refused: bool = False) -> RendezvousConnectionError:
        """Return the error of an attempt; `what` says what has failed."""
        own = ", ".join(a for a in interface_addresses() if not is_loop_back(a)) or "loopback only"
        hosted = f", hosted by {self._store_host}," if self._store_host else ""
        text = f"rendezvous store {self.name!r}{hosted} cannot be reached: {what}"
        if not self._has_connected:
            # After a first success, the endpoint is right.
            text += f". This machine is {os.uname().nodename!r} ({own}){self._advice}"
        kind = StoreNotListeningError if is_refused else RendezvousConnectionError
        return kind(text, names_store=True)


class HostJobCheck:
    """Finds out once which process and job host the store; warns if it is, and ends with, another.

    Args:
        endpoint: the endpoint of the store.
        run_id: the id of this job; empty for no check.
    """

    def __init__(self, endpoint: StoreEndpoint, run_id: str) -> None:
        self._endpoint = endpoint
        self._run_id = run_id
        self._is_done = not run_id
        self._lock = threading.Lock()

    def run(self, store: RendezvousStore) -> None:
        """Check once."""
        with self._lock:
            if self._is_done:
                return
            self._is_done = True
        try:
            identity, held = store.multi_get([IDENTITY, JOB_OF_HOST])
        except RendezvousConnectionError:
            return  # the caller's own operation will fail, too
        if identity is not None:
            name = identity.decode(errors="replace")[:_MAX_NAME_LENGTH]
            self._endpoint.note_host(printable(name))
        if held is None or held == self._run_id.encode():
            return
        _log.warning(
            "the store at %s is hosted by a launcher of another job, %r, and ends with that job; "
            "job %r would then end with exit code 113. Give this job an --rdzv-endpoint of its own",
            self._endpoint.name,
            held.decode(errors="replace")[:_MAX_NAME_LENGTH],
            self._run_id,
        )


def _describe(error: OSError, timeout: float) -> str:
    if isinstance(error, TimeoutError) and error.errno is None:
        return f"no answer within {timeout:.1f} s"
    name = errno.errorcode.get(error.errno or 0, "")
    return f"{error.strerror or error}{f' ({name})' if name else ''}"
