"""The address of a launcher's status: a port on loopback, or HOST:PORT."""

from __future__ import annotations

import errno
import os
import socket

from plaunch.errors import UsageError
from plaunch.numbers import digits, quote
from plaunch_network import join_host_port, open_listener, port_owner

LOOPBACK = ("127.0.0.1", "::1")  # the second one on hosts without IPv4
_BACKLOG = 16
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def parse_address(value: str | int, source: str) -> tuple[str, int]:
    """Parse `9400`, `0.0.0.0:9400` or `[::1]:9400`; an empty host stands for loopback.

    Port 0 stands for any free port. `source` names the option, for messages.

    Raises:
        UsageError: the value has another form.
    """
    host, colon, port = str(value).rpartition(":")
    is_bracketed = len(host) > 2 and host.startswith("[") and host.endswith("]")
    number = digits(port, 65535)
    is_odd = any(char in host for char in ":[]") and not is_bracketed
    if number is None or is_odd or (colon and not host):
        raise UsageError(
            f"{source} is {quote(str(value))}; write a port as in 9400, for loopback, or "
            "HOST:PORT as in 0.0.0.0:9400 or [::1]:9400 (port 0: any that is free)"
        )
    return host.strip("[]"), number


def listen(host: str, port: int, source: str) -> socket.socket:
    """Create a listening socket, which child processes do not inherit.

    Raises:
        UsageError: the address cannot be used; the message names the owner of a taken port.
    """
    error: OSError | None = None
    for candidate in (host,) if host else LOOPBACK:
        try:
            return _listen(candidate, port)
        except OSError as problem:
            error = error or problem
            if problem.errno not in _NO_SUCH_ADDRESS:
                break
    where = join_host_port(host or LOOPBACK[0], port)
    raise UsageError(f"{source} cannot serve at {where}: {_reason(error, port)}") from error


def _listen(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    listener = open_listener(family, str(address[0]), port, _BACKLOG)
    listener.setblocking(False)
    return listener


def _reason(error: OSError | None, port: int) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name has no address ({error.strerror})"
    number = None if error is None else error.errno
    if number == errno.EADDRINUSE:
        owner = port_owner(port)
        suffix = f" by {owner}" if owner else ""
        return f"the port is taken{suffix}; choose another one, or 0 for any that is free"
    if number == errno.EADDRNOTAVAIL:
        return "this host has no such address"
    if number == errno.EACCES:
        return "only root may use this port; choose one above 1023"
    return os.strerror(number) if number else str(error)
