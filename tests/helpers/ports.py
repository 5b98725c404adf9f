"""Ports of this machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that is free on all IPv4 addresses."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]
