"""Ports that stay reserved until the server for the workers binds them.

The kernel does not assign the port of a socket that is bound with SO_REUSEADDR and does not listen.
A server that binds this port by number with SO_REUSEADDR, as TCPStore does, can still use it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.process import list_numbers, read_fds, read_name, read_proc

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
# The states of sockets in these tables.
_ESTABLISHED, _LISTENING = "01", "0A"


class HeldPort:
    """A port that this process reserves; other programs only get it by its number."""

    def __init__(self, sock: socket.socket, claim: socket.socket | None = None) -> None:
        self._socket = sock
        self._claim = claim
        self.port: int = sock.getsockname()[1]

    @classmethod
    def any(cls, within: tuple[int, int] | None = None) -> HeldPort:
        """Reserve a port that the kernel picks, or a free one from `within`, first to last.

        Raises:
            OSError: no port is free at all.
            UsageError: none of `within` is free, or this user may not bind it.
        """
        return cls(_bind(0)) if within is None else _hold_within(*within)

    @classmethod
    def given(cls, port: int, option: str) -> HeldPort:
        """Reserve the port that the user gave with `option`.

        Raises:
            UsageError: another program listens on it, or this user may not bind it.
        """
        try:
            return cls(_bind(port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                owner = port_owner(port)
                by = f" by {owner}" if owner else ""
                raise UsageError(
                    f"port {port} ({option}) is taken{by}; end that program or choose another port"
                ) from error
            raise UsageError(
                f"port {port} ({option}) cannot be bound: {error.strerror}; choose another port"
            ) from error

    def close(self) -> None:
        """Release the port; may be called twice."""
        self._socket.close()
        if self._claim is not None:
            self._claim.close()


def _hold_within(first: int, last: int) -> HeldPort:
    # Launchers that start at the same time begin with different ports; each port is tried once.
    count = last - first + 1
    begin = int.from_bytes(os.urandom(4), "big") % count
    for step in range(count):
        port = first + (begin + step) % count
        with contextlib.ExitStack() as stack:
            claim = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            try:
                # SO_REUSEADDR would let two launchers reserve one port, so they first bind a name
                # for it. Such names are per network namespace, as ports are, and are released with
                # the process.
                if sys.platform == "linux":
                    claim.bind(f"\0plaunch-port-{port}")
                sock = _bind(port)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise UsageError(
                    f"port {port} of {first}-{last} (--port-range) cannot be bound: "
                    f"{error.strerror}; choose another range"
                ) from error
            stack.pop_all()
            return HeldPort(sock, claim)
    raise UsageError(
        f"none of the {count} ports from {first} to {last} (--port-range) is free; end a program "
        "that uses one, or choose a larger range"
    )


def _bind(port: int) -> socket.socket:
    # One dual-stack socket covers both families, as TCPStore's own does; hosts without IPv6 have
    # only the other.
    try:
        return _bind_family(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise
        return _bind_family(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - never listens


def _bind_family(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
            # An address may have a scope, as in fe80::1%eth0.
            sock.bind(socket.getaddrinfo(host, port, family, flags=socket.AI_NUMERICHOST)[0][4])
        else:
            sock.bind((host, port))
        stack.pop_all()
        return sock


def open_listener(
    family: socket.AddressFamily, host: str, port: int, backlog: int = 128
) -> socket.socket:
    """Listen at a numeric address of this machine, also on a reserved port.

    `"::"` means all addresses of both families; other IPv6 addresses do not accept IPv4.

    Raises:
        OSError: another program listens there, this user may not, or the address is not local.
    """
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(_bind_family(family, host, port))
        # Two sockets with SO_REUSEADDR may both bind a port; only one of them may listen.
        sock.listen(backlog)
        stack.pop_all()
        return sock


Place = tuple[socket.AddressFamily, str]  # a numeric address of this machine

# One dual-stack socket covers both families; hosts without IPv6 only have the other.
EVERYWHERE: tuple[Place, ...] = ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0"))  # noqa: S104


def numeric_place(host: str) -> list[Place]:
    """Return `host` with its family; empty for a name, which others may resolve differently."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host.partition("%")[0])
            return [(family, host)]
    return []


def listen_at_first(places: Iterable[Place], port: int, backlog: int) -> socket.socket:
    """Listen at the first of `places` that this machine has; see `open_listener`.

    Raises:
        OSError: it has none of them, another program listens there, or this user may not.
    """
    problem = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    for place in places:
        try:
            return open_listener(*place, port, backlog)
        except OSError as error:
            problem = error
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                break
    raise problem


def port_owner(port: int) -> str:
    """Return which process listens on TCP `port`: "pid 12 (python)"; empty if unknown."""
    pid = next(_find_owners(port), None)
    return "" if pid is None else f"pid {pid} ({read_name(pid)})"


def is_used_by(command: re.Pattern[bytes], port: int) -> bool:
    """Whether a process whose command line matches listens on TCP `port` of this host.

    The words of a command line end with a zero byte each.
    """
    return any(command.search(read_proc(f"{pid}/cmdline")) for pid in _find_owners(port))


def _find_owners(port: int) -> Iterator[int]:
    """Return the processes of this host that listen on TCP `port`, as far as they are known."""
    inodes = {f"socket:[{inode}]" for inode in _find_sockets(port, _LISTENING)}
    for pid in list_numbers() if inodes else ():
        if not inodes.isdisjoint(read_fds(pid).values()):
            yield pid


def has_listener(port: int) -> bool:
    """Whether a process listens on TCP `port` of this host; True if the kernel does not show it.

    A port without a listener may be in use all the same: by a connection that has it as its own
    port, or by a process that has bound it and does not listen yet.
    """
    return any(_find_sockets(port, _LISTENING)) or not os.access(_TABLES[0], os.R_OK)


def count_connections(port: int) -> int:
    """Return the number of connections to TCP `port` of this host; 0 if they are not shown."""
    return sum(1 for _ in _find_sockets(port, _ESTABLISHED))


def _find_sockets(port: int, state: str) -> Iterator[str]:
    """Find the inodes of this host's sockets with the local TCP `port` in a state.

    The kernel lists sockets that listen before all others, of which a host may have very many. So
    only the beginning is read for those.
    """
    for table in _TABLES:
        with contextlib.suppress(OSError), open(table, "rb") as rows:
            next(rows, None)
            for row in rows:
                fields = row.decode().split(None, 10)
                if state == _LISTENING != fields[3]:
                    break
                if fields[3] == state and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
