"""Messages between the launcher, its fork server and the workers: plain data and descriptors."""

from __future__ import annotations

import array
import marshal
import os
import socket
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HEADER = struct.Struct("!I")
_FORMAT = 2  # of `marshal`; all versions of Python read it
_MOST_FDS = 64  # of one message
VARIABLE = "PLAUNCH_FORK_SERVER"  # the number of the fork server's descriptor to the launcher


def send(channel: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message, with descriptors.

    Raises:
        OSError: nobody is there any more, or the time-out of the socket is over.
        ValueError: it has something that is not plain data.
    """
    data = marshal.dumps(dict(message), _FORMAT)
    data = _HEADER.pack(len(data)) + data
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sent = channel.sendmsg([data], rights)
    if sent < len(data):
        channel.sendall(data[sent:])


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """One message and its descriptors, which are close-on-exec; None once the other end is closed.

    Raises:
        OSError: the time-out of the socket is over.
    """
    fds: list[int] = []
    data = _receive(channel, _HEADER.size, fds)
    if len(data) == _HEADER.size:
        (length,) = _HEADER.unpack(data)
        data = _receive(channel, length, fds)
        if len(data) == length:
            return marshal.loads(data), fds  # noqa: S302 - from a process of our own
    return None, fds


def receive_answer(channel: socket.socket, timeout: float) -> dict[str, Any]:
    """One message that is there within `timeout` seconds, and has no descriptors.

    Raises:
        OSError: nobody is there any more; `TimeoutError`, if it takes too long.
    """
    channel.settimeout(timeout)
    answer, fds = receive(channel)
    for fd in fds:
        os.close(fd)
    if answer is None:
        raise ConnectionResetError("it has ended")
    return answer


def _receive(channel: socket.socket, length: int, fds: list[int]) -> bytes:
    data = b""
    room = socket.CMSG_SPACE(_MOST_FDS * array.array("i").itemsize)
    while len(data) < length:
        chunk, ancillary, _, _ = channel.recvmsg(length - len(data), room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, part in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(part[: len(part) - len(part) % numbers.itemsize])
                fds.extend(numbers)
        if not chunk:
            break
        data += chunk
    return data
