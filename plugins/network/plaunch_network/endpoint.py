"""Endpoints as users write them: `host`, `host:port`, `[ipv6]:port`."""

from __future__ import annotations

from plaunch.errors import UsageError
from plaunch.numbers import digits, quote


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """Split an endpoint into host and port; the name is torchrun's.

    An empty endpoint means `localhost`; a missing port means `default_port`. An IPv6 address with
    a port is written in brackets; without a port, brackets may be left out.

    Raises:
        UsageError: the host is missing, or the port is not a number from 0 to 65535.
    """
    text = (endpoint or "").strip()
    if not text:
        return "localhost", default_port
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise UsageError(f"endpoint {endpoint!r} is malformed; write [address]:port for IPv6")
        port = rest[1:] if rest else None
    elif text.count(":") > 1:
        host, port = text, None
    else:
        host, colon, tail = text.partition(":")
        port = tail if colon else None
    if not host:
        raise UsageError(f"endpoint {endpoint!r} has no host; write host:port")
    if port is None:
        return host, default_port
    number = digits(port, 65535)
    if number is None:
        raise UsageError(
            f"port {quote(port)} of endpoint {quote(endpoint)} is not a number from 0 to 65535"
        )
    return host, number
