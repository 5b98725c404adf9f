"""Decides, by trying to bind the port, whether this node hosts the TCPStore, and hosts it."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from plaunch.errors import RendezvousConnectionError, RendezvousError, UsageError
from plaunch_network import (
    EVERYWHERE,
    is_loop_back,
    is_own_address,
    join_host_port,
    listen_at_first,
    names_this_machine,
    numeric_place,
    port_owner,
    resolve_host,
)

from plaunch_rendezvous_c10d.connecting import CONNECT_BOUNDS, JOB_OF_HOST, run_bounded
from plaunch_rendezvous_c10d.stores import first_line
from plaunch_rendezvous_c10d.torch_import import load_distributed

if TYPE_CHECKING:
    from plaunch_rendezvous_c10d.connecting import Connector

_BACKLOG = 4096
_IDENTITY = "plaunch/host"


class HostedTcpStore:
    """A TCPStore in this process, until `close`.

    Args:
        listener: the listening socket to serve; it belongs to torch from now on.
        run_id: the id of the host's job, with which the store ends; for warnings of other jobs.
    """

    def __init__(self, listener: socket.socket, run_id: str = "") -> None:
        address = listener.getsockname()
        self.port: int = address[1]
        # The server is its own first client. Wildcard addresses are reached over loopback.
        self.loop_back = address[0] if is_loop_back(address[0]) else "127.0.0.1"
        uname = os.uname()
        self.identity = f"{uname.nodename} (pid {os.getpid()}, {secrets.token_hex(4)})"

        self.listener_fd = os.dup(listener.fileno())  # readable when a client connects

        distributed = load_distributed()

        def create() -> Any:
            store = distributed.TCPStore(
                host_name=self.loop_back,
                port=self.port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=CONNECT_BOUNDS.timeout),
                master_listen_fd=listener.detach(),
            )
            store.set(_IDENTITY, self.identity)
            if run_id:
                store.set(JOB_OF_HOST, run_id)
            return store

        try:
            self._store = run_bounded(create, CONNECT_BOUNDS.timeout, "host")
        except (RuntimeError, OSError) as error:
            self.close()
            raise RendezvousConnectionError(
                f"the rendezvous store cannot be hosted on port {self.port}: {first_line(error)}"
            ) from error

    def close(self) -> None:
        """Stop the server; waiting clients get an error. May be called twice."""
        self._store = None
        listener_fd, self.listener_fd = self.listener_fd, -1
        if listener_fd >= 0:
            os.close(listener_fd)


def is_this_machine(host: str, port: int) -> bool:
    """Whether the endpoint's host is this machine."""
    if names_this_machine(host):
        return True
    try:
        addresses = resolve_host(host, port)
    except RendezvousConnectionError:
        # In a cluster, a full name may not resolve until its machine is ready. This machine is not
        # ready yet if that is its name.
        return names_this_machine(host.partition(".")[0])
    return any(is_own_address(address) for address in addresses)


def may_be_elsewhere(host: str, port: int) -> bool:
    """Whether the endpoint may be another machine, seen from other nodes."""
    try:
        return not all(is_own_address(address) for address in resolve_host(host, port))
    except RendezvousConnectionError:
        return True


def listen(host: str, port: int, *, is_local: bool) -> socket.socket:
    """Open the listening socket: on all interfaces and both families, or on loopback only.

    Raises:
        OSError: EADDRINUSE if another program listens on the port.
    """
    if not is_local:
        return listen_at_first(EVERYWHERE, port, _BACKLOG)
    given = numeric_place(host) if is_loop_back(host) else []
    loop_back = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    return listen_at_first([*given, *loop_back], port, _BACKLOG)


def host_store(
    host: str, port: int, run_id: str, *, is_local: bool, is_requested: bool
) -> HostedTcpStore | None:
    """Host the store; None if another process of this machine does, unless hosting was requested.

    Raises:
        UsageError: the port is taken although hosting was requested, or may not be bound.
        RendezvousConnectionError: torch cannot host it.
    """
    try:
        listener = listen(host, port, is_local=is_local)
    except OSError as error:
        where = join_host_port(host, port)
        if error.errno != errno.EADDRINUSE:
            raise UsageError(
                f"the rendezvous store {where!r} cannot be hosted: {error.strerror}; choose "
                "another port in --rdzv-endpoint"
            ) from error
        if not is_requested:
            return None
        owner = port_owner(port)
        raise UsageError(
            f"this node is to host the rendezvous store {where!r} (is_host=true), but the port is "
            f"taken{f' by {owner}' if owner else ''}; end that program, choose another port, or "
            "leave is_host out so that this node joins"
        ) from error
    return HostedTcpStore(listener, run_id)


def check_sole_host(hosted: HostedTcpStore, connector: Connector) -> None:
    """Check that the endpoint leads to the store of this process, where it may lead elsewhere.

    An endpoint that cannot be reached from here passes: a cluster's service may lead here only once
    this node is ready.

    Raises:
        RendezvousError: it leads to another store.
    """
    try:
        store = connector.connect()
    except RendezvousConnectionError:
        return
    try:
        other = store.multi_get([_IDENTITY])[0]
    except RendezvousConnectionError:
        return
    finally:
        store.close()
    if other == hosted.identity.encode():
        return
    named = "a store that is not plaunch's" if other is None else other.decode(errors="replace")
    raise RendezvousError(
        f"two hosts for one rendezvous: {hosted.identity} hosts a store on port {hosted.port}, but "
        f"endpoint {connector.endpoint!r} leads to {named}; give is_host=true to one node only"
    )
