"""Whose address is which: resolved endpoints, this machine's own, and how others reach it."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from typing import cast

from plaunch.errors import RendezvousConnectionError
from plaunch.process import read_proc
from plaunch.threads import BoundedCall

RESOLVE_TIMEOUT = 5.0  # seconds; a name server that is away takes far longer by itself

# Addresses for documentation (RFC 5737, RFC 3849): only the default route leads there, and a
# connected datagram socket sends nothing.
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")
_ANY_PORT = 9


@dataclass(frozen=True)
class SocketAddress:
    """One address of an endpoint, as the socket module takes it.

    Args:
        family: IPv4 or IPv6.
        sockaddr: what `connect` is given.
    """

    family: socket.AddressFamily
    sockaddr: tuple[str, int] | tuple[str, int, int, int]

    @property
    def host(self) -> str:
        """The numeric address."""
        return self.sockaddr[0]

    @property
    def port(self) -> int:
        """The port."""
        return self.sockaddr[1]

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)


def join_host_port(host: str, port: int) -> str:
    """An endpoint as users write it, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolve_host(
    host: str, port: int, timeout: float = RESOLVE_TIMEOUT
) -> tuple[SocketAddress, ...]:
    """All addresses of `host`, in the order in which they are to be tried.

    The system's resolver cannot be interrupted, so names are asked for on another thread.

    Raises:
        RendezvousConnectionError: the name is unknown, or there is no answer in `timeout` seconds.
    """
    with contextlib.suppress(socket.gaierror, UnicodeError):
        return _look_up(host, port, socket.AI_NUMERICHOST)
    call = BoundedCall("resolve", lambda: _look_up(host, port, 0))
    if not call.wait(timeout):
        raise RendezvousConnectionError(
            f"the name server has not answered for {host!r} within {timeout:g} s"
        )
    error = call.error
    if isinstance(error, (OSError, UnicodeError)):  # a label that IDNA refuses is a UnicodeError
        raise RendezvousConnectionError(
            f"host {host!r} has no address here: {getattr(error, 'strerror', None) or error}"
        ) from error
    if error is not None:
        raise error
    return cast("tuple[SocketAddress, ...]", call.result)


def _look_up(host: str, port: int, flags: int) -> tuple[SocketAddress, ...]:
    found: dict[SocketAddress, None] = {}  # as an ordered set
    for family, _, _, _, sockaddr in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=flags
    ):
        if family in (socket.AF_INET, socket.AF_INET6):
            found[SocketAddress(family, sockaddr)] = None  # type: ignore[arg-type]
    return tuple(found)


def is_loop_back(address: str) -> bool:
    """Whether a numeric address never leaves the machine."""
    return address.startswith(("127.", "::ffff:127.")) or address == "::1"


def is_own_address(address: SocketAddress) -> bool:
    """Whether `address` belongs to this machine, found by binding it."""
    if is_loop_back(address.host):
        return True
    sockaddr = (address.host, 0, *address.sockaddr[2:])
    try:
        with socket.socket(address.family, socket.SOCK_STREAM) as sock:
            sock.bind(sockaddr)
    except OSError:
        return address.host.partition("%")[0] in interface_addresses()
    # With this setting the kernel binds every address, whoever it belongs to.
    version = "ipv6" if address.family == socket.AF_INET6 else "ipv4"
    if read_proc(f"sys/net/{version}/ip_nonlocal_bind").strip() not in (b"", b"0"):
        return address.host.partition("%")[0] in interface_addresses()
    return True


def interface_addresses() -> tuple[str, ...]:
    """The addresses of this machine's interfaces, loopback last; none where there is no /proc."""
    found: dict[str, None] = {}
    above = ""
    for line in read_proc("net/fib_trie").decode().splitlines():
        if "/32 host LOCAL" in line:
            found[above.rpartition(" ")[2]] = None
        above = line.rstrip()
    for line in read_proc("net/if_inet6").decode().splitlines():
        packed = bytes.fromhex(line.split()[0])
        found[socket.inet_ntop(socket.AF_INET6, packed)] = None
    return tuple(sorted(found, key=lambda address: (is_loop_back(address), ":" in address)))


def find_node_address(
    host: str = "", port: int = 0, *, max_nodes: int, local_addr: str | None = None
) -> str:
    """The address under which the other nodes of a job reach this one; it becomes MASTER_ADDR.

    A given `local_addr` is taken as it is. Otherwise it is the address of the local end of a socket
    towards the endpoint at `host` and `port`; where there is no endpoint, or only this machine
    takes its name for a loopback address (as Debian does), the one towards the default route; at
    the last an interface's, and the host's name. A job of one node stays on loopback. Nothing is
    sent; a name may take `RESOLVE_TIMEOUT` seconds.
    """
    if local_addr:
        return local_addr
    if max_nodes == 1:
        return "127.0.0.1"
    towards: list[SocketAddress] = []
    if host:
        with contextlib.suppress(RendezvousConnectionError):
            towards += resolve_host(host, port or _ANY_PORT)
    # Whoever writes a loopback address as the endpoint has all nodes on this machine.
    may_be_loop_back = host == "localhost" or is_loop_back(host)
    for address in towards:
        end = _local_end(address)
        if end and (may_be_loop_back or not is_loop_back(end)):
            return end
    for text in _ELSEWHERE:
        for address in _look_up(text, _ANY_PORT, socket.AI_NUMERICHOST):
            end = _local_end(address)
            if end:
                return end
    for text in interface_addresses():
        if not is_loop_back(text) and not text.startswith("fe80:"):
            return text
    return socket.gethostname()


def _local_end(address: SocketAddress) -> str:
    """The address that a socket towards `address` is given; empty if there is no route."""
    try:
        with socket.socket(address.family, socket.SOCK_DGRAM) as sock:
            sock.connect(address.sockaddr)
            end: str = sock.getsockname()[0]
    except OSError:
        return ""
    return "" if end in ("0.0.0.0", "::") else end  # noqa: S104 - compared, not bound


def names_this_machine(host: str) -> bool:
    """Whether `host` is a name of this machine itself; it is not resolved."""
    own = os.uname().nodename.lower()
    return host.lower().rstrip(".") in (own, own.partition(".")[0])
