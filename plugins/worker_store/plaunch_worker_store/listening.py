"""The socket at which the workers of a round connect to their store."""

from __future__ import annotations

import errno
import socket

from plaunch.errors import RendezvousConnectionError, WorkerStoreError
from plaunch_network import EVERYWHERE, listen_at_first, numeric_place

_BACKLOG = 4096  # workers that may connect before the store is served

_MAX_PORT = 65535


def listen(address: str, port: int, *, nodes: int) -> socket.socket:
    """Listen at the address that workers get for their store.

    This is `address` itself if it is a numeric address of this machine, or, in a job of one node, a
    name for loopback or for one address. This node cannot know how another node resolves a name or
    reaches an address; in these cases it listens on all interfaces.

    Args:
        address: `MASTER_ADDR`.
        port: `MASTER_PORT`.
        nodes: the number of nodes of the round.

    Raises:
        WorkerStoreError: another program listens there, or this user may not.
    """
    if not 0 < port <= _MAX_PORT:
        raise _refused(address, port, None)
    places = (*_find_places(address, port, nodes), *EVERYWHERE)
    try:
        return listen_at_first(places, port, _BACKLOG)
    except OSError as error:
        raise _refused(address, port, error) from error


def own_address(listener: socket.socket) -> str:
    """Return an address at which this machine reaches a listening socket."""
    host: str = listener.getsockname()[0]
    return "127.0.0.1" if host in ("::", "0.0.0.0") else host  # noqa: S104 - compared, not bound


def _find_places(address: str, port: int, nodes: int) -> list[tuple[socket.AddressFamily, str]]:
    """Return addresses to listen at instead of all; the first one of this machine is used."""
    places = numeric_place(address)
    if places or nodes > 1:
        return places
    from plaunch_network import is_loop_back, resolve_host  # names only

    try:
        found = resolve_host(address, port)
    except RendezvousConnectionError:
        return []  # the workers will report it
    if len(found) > 1 and not all(is_loop_back(one.host) for one in found):
        return []
    # torch's clients try IPv6 first.
    by_family = sorted(found, key=lambda one: one.family != socket.AF_INET6)
    return [(one.family, one.host) for one in by_family]


def _refused(address: str, port: int, problem: OSError | None) -> WorkerStoreError:
    from plaunch_network import join_host_port, port_owner  # errors only

    where = join_host_port(address, port)
    if problem is not None and problem.errno == errno.EADDRINUSE:
        owner = port_owner(port)
        return WorkerStoreError(
            f"the workers' store at {where} (MASTER_ADDR, MASTER_PORT) cannot be hosted: the port "
            f"is taken{f' by {owner}' if owner else ''}; end that program, or choose another port"
        )
    advice = "choose another port"
    if problem is not None and problem.errno != errno.EACCES:  # a worker is the same user
        advice += ", or let the worker of rank 0 host it (--worker-store=rank0)"
    return WorkerStoreError(
        f"the workers' store at {where} (MASTER_ADDR, MASTER_PORT) cannot be hosted: "
        f"{problem.strerror if problem is not None else 'there is no such port'}; {advice}"
    )
