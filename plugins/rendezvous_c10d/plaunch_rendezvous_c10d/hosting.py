"""Finds out by trying who hosts the TCPStore, and hosts it on its own socket."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from plaunch.errors import RendezvousConnectionError, RendezvousError, UsageError
from plaunch_network import (
    is_loop_back,
    is_own_address,
    join_host_port,
    names_this_machine,
    open_listener,
    port_owner,
    resolve_host,
)

from plaunch_rendezvous_c10d.connecting import CONNECT_TIMEOUT, JOB_OF_HOST, run_bounded
from plaunch_rendezvous_c10d.stores import first_line

if TYPE_CHECKING:
    from plaunch_rendezvous_c10d.connecting import Connector

_BACKLOG = 4096
_IDENTITY = "plaunch/host"


class HostedStore:
    """A TCPStore in this process, until `close`.

    Args:
        distributed: the module `torch.distributed`.
        listener: the socket to serve, which listens; torch's from now on.
        run_id: the id of the job with which the store ends, for those of other jobs.
    """

    def __init__(self, distributed: Any, listener: socket.socket, run_id: str = "") -> None:
        address = listener.getsockname()
        self.port: int = address[1]
        # The server is its own first client. A wildcard is reached over loopback.
        self.loop_back = address[0] if is_loop_back(address[0]) else "127.0.0.1"
        uname = os.uname()
        self.identity = f"{uname.nodename} (pid {os.getpid()}, {secrets.token_hex(4)})"

        self.bell = os.dup(listener.fileno())  # tells when somebody connects

        def create() -> Any:
            store = distributed.TCPStore(
                host_name=self.loop_back,
                port=self.port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=CONNECT_TIMEOUT),
                master_listen_fd=listener.detach(),
            )
            store.set(_IDENTITY, self.identity)
            if run_id:
                store.set(JOB_OF_HOST, run_id)
            return store

        try:
            self._store = run_bounded(create, CONNECT_TIMEOUT, "host")
        except (RuntimeError, OSError) as error:
            self.close()
            raise RendezvousConnectionError(
                f"the rendezvous store cannot be hosted on port {self.port}: {first_line(error)}"
            ) from error

    def close(self) -> None:
        """End the server; waiting clients get an error. May be called twice."""
        self._store = None
        bell, self.bell = self.bell, -1
        if bell >= 0:
            os.close(bell)


def is_this_machine(host: str, port: int) -> bool:
    """Whether the endpoint's host is the machine that we are on."""
    if names_this_machine(host):
        return True
    try:
        addresses = resolve_host(host, port)
    except RendezvousConnectionError:
        # In a cluster, a full name may be unknown until its machine is ready, which this one is
        # not if it bears that name.
        return names_this_machine(host.partition(".")[0])
    return any(is_own_address(address) for address in addresses)


def may_be_elsewhere(host: str, port: int) -> bool:
    """Whether the endpoint might lead others to another machine than this one."""
    try:
        return not all(is_own_address(address) for address in resolve_host(host, port))
    except RendezvousConnectionError:
        return True


def listen(host: str, port: int, *, is_local: bool) -> socket.socket:
    """Open the socket to host on: for all interfaces and both families, or loopback alone.

    Raises:
        OSError: EADDRINUSE if another program listens on the port.
    """
    if is_local:
        places = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
        if host == "::1":
            places.reverse()
        elif is_loop_back(host):
            places[0] = (socket.AF_INET, host)
    else:
        places = [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]  # noqa: S104 - other nodes
    first, second = places
    try:
        return open_listener(*first, port, _BACKLOG)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise
        return open_listener(*second, port, _BACKLOG)  # a machine without the family


def host_store(
    distributed: Any, host: str, port: int, run_id: str, *, is_local: bool, is_asked: bool
) -> HostedStore | None:
    """Host the store; None if another process of this machine does, and hosting was not requested.

    Raises:
        UsageError: the port is taken although we were asked to host, or may not be bound.
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
        if not is_asked:
            return None
        owner = port_owner(port)
        raise UsageError(
            f"this node is to host the rendezvous store {where!r} (is_host=true), but the port is "
            f"taken{f' by {owner}' if owner else ''}; end that program, choose another port, or "
            "leave is_host out so that this node joins"
        ) from error
    return HostedStore(distributed, listener, run_id)


def check_sole_host(hosted: HostedStore, connector: Connector) -> None:
    """Make sure that the endpoint leads to our store; call it where it may lead elsewhere.

    An endpoint that cannot be reached from here proves nothing: a cluster's service may lead here
    only once this node is ready.

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
