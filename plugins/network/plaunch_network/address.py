"""Addresses: of endpoints, of this machine, and the one at which other nodes reach it."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from typing import cast

from plaunch.errors import RendezvousConnectionError, UsageError
from plaunch.numbers import digits, quote
from plaunch.process import read_proc
from plaunch.threads import BoundedCall

RESOLVE_TIMEOUT = 5.0  # seconds; without a limit, a dead name server takes far longer

# Addresses for documentation (RFC 5737, RFC 3849): only the default route leads there. Connecting a
# datagram socket sends nothing.
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")
_ANY_PORT = 9


@dataclass(frozen=True)
class SocketAddress:
    """One address of an endpoint, in the format of the socket module.

    Args:
        family: IPv4 or IPv6.
        sockaddr: the argument of `connect`.
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
    """Format an endpoint, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """Split an endpoint into host and port; the name is torchrun's.

    An empty endpoint means `localhost`; a missing port means `default_port`. An IPv6 address with
    a port is written in brackets; without a port, brackets may be left out.

    Raises:
        UsageError: the host is missing or malformed, or the port is not a number from 0 to 65535.
    """
    text = (endpoint or "").strip()
    if not text:
        return "localhost", default_port
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise UsageError(
                f"endpoint {quote(endpoint)} is malformed; write [address]:port for IPv6"
            )
        port = rest[1:] if rest else None
    elif "://" in text:
        raise UsageError(
            f"endpoint {quote(endpoint)} begins with a protocol, which is not a part of an "
            "endpoint here; write host:port"
        )
    elif _is_ipv6(text):
        host, port = text, None
    else:
        host, colon, tail = text.partition(":")
        port = tail if colon else None
    if not host:
        raise UsageError(f"endpoint {quote(endpoint)} has no host; write host:port")
    if not (_is_name(host) or _is_ipv6(host)):
        raise UsageError(
            f"host {quote(host)} of endpoint {quote(endpoint)} is neither a name nor an address; "
            "write host:port, or [address]:port for IPv6"
        )
    if port is None:
        return host, default_port
    number = digits(port, 65535)
    if number is None:
        raise UsageError(
            f"port {quote(port)} of endpoint {quote(endpoint)} is not a number from 0 to 65535"
        )
    return host, number


def no_port_error(endpoint: str, advice: str) -> UsageError:
    """Return the error about an endpoint without a port that all nodes know.

    Args:
        endpoint: as the user gave it.
        advice: what to do about it, an imperative.
    """
    return UsageError(f"endpoint {quote(endpoint)} has no port that all nodes know; {advice}")


def _is_ipv6(text: str) -> bool:
    """Whether a text is an IPv6 address, which may name an interface: `fe80::1%eth0`."""
    address, percent, scope = text.partition("%")
    try:
        socket.inet_pton(socket.AF_INET6, address)
    except (OSError, ValueError):  # the latter for a NUL character
        return False
    return not percent or bool(scope and _is_name(scope))


def _is_name(text: str) -> bool:
    """Whether a text has only the characters of names and IPv4 addresses; torchrun's rule."""
    return all(char.isalnum() or char in "_.-" for char in text)


def resolve_host(
    host: str, port: int, timeout: float = RESOLVE_TIMEOUT
) -> tuple[SocketAddress, ...]:
    """Return all addresses of `host`, in the order in which to try them.

    The system's resolver cannot be interrupted, so names are resolved on another thread.

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
    if isinstance(error, (OSError, UnicodeError)):  # an invalid IDNA label is a UnicodeError
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
    """Whether a numeric address is a loopback address."""
    return address.startswith(("127.", "::ffff:127.")) or address == "::1"


def is_own_address(address: SocketAddress) -> bool:
    """Whether `address` belongs to this machine, tested by binding it."""
    if is_loop_back(address.host):
        return True
    sockaddr = (address.host, 0, *address.sockaddr[2:])
    try:
        with socket.socket(address.family, socket.SOCK_STREAM) as sock:
            sock.bind(sockaddr)
    except OSError:
        return address.host.partition("%")[0] in interface_addresses()
    # With this setting the kernel binds any address.
    version = "ipv6" if address.family == socket.AF_INET6 else "ipv4"
    if read_proc(f"sys/net/{version}/ip_nonlocal_bind").strip() not in (b"", b"0"):
        return address.host.partition("%")[0] in interface_addresses()
    return True


def interface_addresses() -> tuple[str, ...]:
    """Return the addresses of this machine's interfaces, loopback last; none without /proc."""
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
    """Return the address at which other nodes of a job reach this one; it becomes MASTER_ADDR.

    `local_addr` is used as it is, if given. Otherwise it is the local address of a socket towards
    the endpoint at `host` and `port`. Without an endpoint, or if only this machine resolves its
    name to a loopback address (as Debian does), it is the one towards the default route; failing
    that, an interface's, or the hostname. A job of one node uses loopback. Nothing is sent;
    resolving a name may take `RESOLVE_TIMEOUT` seconds.
    """
    if local_addr:
        return local_addr
    if max_nodes == 1:
        return "127.0.0.1"
    towards: list[SocketAddress] = []
    if host:
        with contextlib.suppress(RendezvousConnectionError):
            towards += resolve_host(host, port or _ANY_PORT)
    # With a loopback address as the endpoint, all nodes are on this machine.
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


def find_local_address(host: str) -> str:
    """Return the address of this machine on its route to a numeric address; empty without one."""
    with contextlib.suppress(socket.gaierror, UnicodeError):
        for address in _look_up(host, _ANY_PORT, socket.AI_NUMERICHOST):
            return _local_end(address)
    return ""


def _local_end(address: SocketAddress) -> str:
    """Return the local address of a socket towards `address`; empty if there is no route."""
    try:
        with socket.socket(address.family, socket.SOCK_DGRAM) as sock:
            sock.connect(address.sockaddr)
            end: str = sock.getsockname()[0]
    except OSError:
        return ""
    return "" if end in ("0.0.0.0", "::") else end  # noqa: S104 - compared, not bound


def names_this_machine(host: str) -> bool:
    """Whether `host` is a name of this machine, without resolving it."""
    own = os.uname().nodename.lower()
    return host.lower().rstrip(".") in (own, own.partition(".")[0])
