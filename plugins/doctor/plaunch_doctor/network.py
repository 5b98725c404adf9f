"""Access to names, addresses and ports; every call has a time limit."""

from __future__ import annotations

import errno
import socket
from typing import cast

from plaunch.errors import RendezvousConnectionError
from plaunch.threads import BoundedCall
from plaunch_network import SocketAddress, is_own_address, port_owner, resolve_host

FREE, TAKEN, FORBIDDEN = "free", "taken", "forbidden"
ACCEPTED, REFUSED, SILENT = "accepted", "refused", "silent"


class Network:
    """The network as this host sees it. Tests replace it with a fake."""

    def resolve(self, host: str, port: int, timeout: float) -> tuple[SocketAddress, ...]:
        """Return the addresses of `host`.

        Raises:
            RendezvousConnectionError: the name is unknown, or not resolved in `timeout` seconds.
        """
        return resolve_host(host, port, timeout)

    def names_of(self, address: str, timeout: float) -> list[str]:
        """Return the names of `address`, the primary name first; empty if it has none.

        Raises:
            RendezvousConnectionError: not resolved in `timeout` seconds.
        """

        def lookup() -> list[str]:
            try:
                name, aliases, _ = socket.gethostbyaddr(address)
            except OSError:
                return []
            return [name, *aliases]

        # The system's resolver cannot be interrupted.
        call = BoundedCall("names", lookup)
        if not call.wait(timeout):
            raise RendezvousConnectionError(
                f"the name server has not answered for {address} within {timeout:g} s"
            )
        if call.error is not None:
            raise call.error
        return cast("list[str]", call.result)

    def is_own(self, address: SocketAddress) -> bool:
        """Whether `address` belongs to this host."""
        return is_own_address(address)

    def connect(self, address: SocketAddress, timeout: float) -> tuple[str, str]:
        """Try to connect; return `accepted`, `refused` or `silent`, and the reason."""
        try:
            with socket.socket(address.family, socket.SOCK_STREAM) as sock:
                sock.settimeout(timeout)
                sock.connect(address.sockaddr)
        except ConnectionRefusedError as error:
            return REFUSED, str(error.strerror)
        except TimeoutError:
            return SILENT, f"no answer within {timeout:g} s"
        except OSError as error:
            return SILENT, str(error.strerror or error)
        return ACCEPTED, ""

    def bind(self, port: int) -> str:
        """Whether this process could listen on `port`: `free`, `taken` or `forbidden`.

        Raises:
            OSError: another cause, such as no free descriptors.
        """
        for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104 - closed at once
            try:
                with socket.socket(family, socket.SOCK_STREAM) as sock:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind((host, port))
                    sock.listen(1)
                return FREE
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return TAKEN
                if error.errno == errno.EACCES:
                    return FORBIDDEN
                if family == socket.AF_INET:
                    raise
        raise AssertionError  # not reached: the loop always returns or raises

    def owner(self, port: int) -> str:
        """Return the process that listens on `port` of this host; empty if unknown."""
        return port_owner(port)
