"""Decides, by trying to bind the port, whether this node hosts the store."""

from __future__ import annotations

import contextlib
import enum
import errno
import socket
from typing import TYPE_CHECKING, Protocol

from plaunch.errors import RendezvousConnectionError, RendezvousError, UsageError
from plaunch.texts import printable
from plaunch_job_store.identity import IDENTITY
from plaunch_membership import MAX_NAME
from plaunch_network import (
    EVERYWHERE,
    has_listener,
    is_loop_back,
    is_own_address,
    join_host_port,
    listen_at_first,
    names_this_machine,
    numeric_place,
    port_owner,
    resolve_host,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.rendezvous import Store
    from plaunch_membership import RendezvousStore

    from plaunch_rendezvous_c10d.endpoint import StoreEndpoint

_BACKLOG = 4096


class StoreConnector(Protocol):
    """Opens connections to a store."""

    endpoint: StoreEndpoint

    @property
    def subscribe(self) -> Callable[[Callable[[], None]], None] | None:
        """See `StoreAccess.subscribe`."""

    def connect(self) -> RendezvousStore:
        """Open a connection; raises `RendezvousConnectionError` after some seconds."""

    def open_store(self, prefix: str) -> Store:
        """Open torch's store under a prefix, for programs."""

    def has_lost_data(self) -> bool:
        """See `StoreAccess.has_lost_data`."""

    def close(self) -> None:
        """Release what the connections share."""


class HostedRendezvousStore(Protocol):
    """A store that this node hosts."""

    identity: str
    """Names this host and process in messages, and is unique."""
    port: int
    """The port on which it listens."""

    @property
    def connector(self) -> StoreConnector:
        """Opens connections of this node."""

    def has_guests(self) -> bool:
        """Whether other processes are connected to it."""

    def close(self) -> None:
        """Stop it; waiting clients get an error. May be called twice."""


def own_address(listener: socket.socket) -> str:
    """Return the address at which this node reaches its own store; a wildcard's is loopback."""
    address: str = listener.getsockname()[0]
    return address if is_loop_back(address) else "127.0.0.1"


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


class PortState(enum.Enum):
    """What this machine's kernel says of the port of the endpoint."""

    FREE = "free"
    SERVED = "served"  # a process listens on it
    BUSY = "busy"  # it is in use, and no process listens on it
    FORBIDDEN = "forbidden"


class HostingDecision(enum.Enum):
    """What a node does about the store of an endpoint that names its machine."""

    HOST = "host"
    JOIN = "join"
    TRY_AGAIN = "try again"
    FAIL = "fail"


# By the state of the port, and whether `is_host=true` is given. A busy port is only a delay: it is
# the own port of a connection, or another agent tries to host, too. If two processes have bound a
# port with SO_REUSEADDR and call `listen` at the same moment, the kernel marks both sockets as
# listening, finds each in conflict with the other, and refuses both.
DECISIONS = {
    (PortState.FREE, False): HostingDecision.HOST,
    (PortState.FREE, True): HostingDecision.HOST,
    (PortState.SERVED, False): HostingDecision.JOIN,
    (PortState.SERVED, True): HostingDecision.FAIL,
    (PortState.BUSY, False): HostingDecision.TRY_AGAIN,
    (PortState.BUSY, True): HostingDecision.TRY_AGAIN,
    (PortState.FORBIDDEN, False): HostingDecision.FAIL,
    (PortState.FORBIDDEN, True): HostingDecision.FAIL,
}


def decide_hosting(
    host: str,
    port: int,
    *,
    is_local: bool,
    is_requested: bool,
    is_hosted: Callable[[], bool] = lambda: False,
) -> tuple[HostingDecision, socket.socket | None]:
    """Decide whether this node hosts the store, by trying to listen on its port.

    Args:
        host: the host of the endpoint.
        port: its port.
        is_local: whether to listen on loopback only.
        is_requested: whether the options of this node request that it hosts the store.
        is_hosted: whether a store answers on the port; called if hosting was requested and a
            process listens. Another agent of this machine with the same request hosts it then.

    Returns:
        The decision, and the listening socket if it is to host.

    Raises:
        UsageError: hosting was requested and another program has the port, or it may not be bound.
    """
    problem = None
    try:
        return HostingDecision.HOST, listen(host, port, is_local=is_local)
    except OSError as error:
        problem = error
    if problem.errno != errno.EADDRINUSE:
        state = PortState.FORBIDDEN
    else:
        state = PortState.SERVED if has_listener(port) else PortState.BUSY
    if is_requested and state is PortState.SERVED and is_hosted():
        is_requested = False
    decision = DECISIONS[state, is_requested]
    if decision is not HostingDecision.FAIL:
        return decision, None
    where = join_host_port(host, port)
    if state is PortState.FORBIDDEN:
        raise UsageError(
            f"the rendezvous store {where!r} cannot be hosted: {problem.strerror}; choose "
            "another port in --rdzv-endpoint"
        ) from problem
    owner = port_owner(port)
    raise UsageError(
        f"this node is to host the rendezvous store {where!r} (is_host=true), but the port is "
        f"taken{f' by {owner}' if owner else ''}; end that program, choose another port, or "
        "leave is_host out so that this node joins"
    ) from problem


def answers(connector: StoreConnector) -> bool:
    """Whether a store answers that this node can use; closes the connector."""
    with contextlib.closing(connector):
        try:
            connector.connect().close()
        except (RendezvousError, UsageError):
            return False
    return True


def check_sole_host(hosted: HostedRendezvousStore, connector: StoreConnector) -> None:
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
        other = store.multi_get([IDENTITY])[0]
    except RendezvousConnectionError:
        return
    finally:
        store.close()
    if other == hosted.identity.encode():
        return
    named = (
        "a store that is not plaunch's"
        if other is None
        else printable(other.decode(errors="replace"), MAX_NAME)
    )
    raise RendezvousError(
        f"two hosts for one rendezvous: {hosted.identity} hosts a store on port {hosted.port}, but "
        f"endpoint {connector.endpoint.name!r} leads to {named}; give is_host=true to one node only"
    )
