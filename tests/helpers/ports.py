"""Ports of this machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port at which nobody listens on any address of IPv4."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]
