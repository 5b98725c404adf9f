"""Ports of this machine."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def free_port() -> int:
    """Return a port that is free on all IPv4 addresses."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]


@contextlib.contextmanager
def outgoing_connection(port: int) -> Iterator[None]:
    """Hold a connection that has `port` as its own port, as the kernel gives one from its range."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.bind(("127.0.0.1", port))
        client.connect(server.getsockname())
        # Closed with a reset, it leaves nothing behind on the port.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        yield
