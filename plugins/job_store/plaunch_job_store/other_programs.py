"""Recognises programs that may be at the endpoint instead of the store."""

from __future__ import annotations

import contextlib
import os
import struct
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousConnectionError

from plaunch_job_store import frames
from plaunch_job_store.limits import MAX_GREETING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_PROBE_TIMEOUT = 1.0  # seconds

_FIRST_BYTES = (
    (b"SSH-", "an ssh server"),
    (b"HTTP", "an HTTP server"),
    (b"\x15\x03", "a TLS server"),
)

# Of the protocol of TCPStore (torch's TCPStoreBackend.hpp). A ping is answered with its number.
_VALIDATE, _MAGIC, _PING = b"\0", struct.pack("=I", 0x3C85F7CE), b"\x0d"


def recognise(first: bytes) -> str:
    """Name the program that answers with these first bytes; empty if it is not known."""
    return next((name for beginning, name in _FIRST_BYTES if first.startswith(beginning)), "")


def is_job_store(dial: Callable[[float], socket.socket]) -> bool:
    """Whether the program is the store of a job of plaunch; connects to it once more."""
    with (
        contextlib.suppress(OSError, RendezvousConnectionError),
        dial(_PROBE_TIMEOUT) as sock,
    ):
        sock.settimeout(_PROBE_TIMEOUT)
        return frames.MAGIC in sock.recv(MAX_GREETING)
    return False


def is_tcp_store(dial: Callable[[float], socket.socket]) -> bool:
    """Whether the program is a TCPStore of torch; connects to it once more."""
    number = os.urandom(4)
    with (
        contextlib.suppress(OSError, RendezvousConnectionError),
        dial(_PROBE_TIMEOUT) as sock,
    ):
        sock.settimeout(_PROBE_TIMEOUT)
        sock.sendall(_VALIDATE + _MAGIC + _PING + number)
        return sock.recv(len(number)) == number
    return False
