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
_FORMAT = 2  # the version of `marshal`; all Python versions read it
_MAX_FDS = 64  # of one message
VARIABLE = "PLAUNCH_FORK_SERVER"  # the fork server's descriptor of the channel


def send(channel: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message, with descriptors.

    Raises:
        OSError: the other end is closed, or the timeout of the socket has expired.
        ValueError: the message is not plain data.
    """
    data = marshal.dumps(dict(message), _FORMAT)
    data = _HEADER.pack(len(data)) + data
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sent = channel.sendmsg([data], rights)
    if sent < len(data):
        channel.sendall(data[sent:])


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive one message and its descriptors, which are close-on-exec; None at the end.

    Raises:
        OSError: the timeout of the socket has expired.
    """
    fds: list[int] = []
    data = _receive(channel, _HEADER.size, fds)
    if len(data) == _HEADER.size:
        (length,) = _HEADER.unpack(data)
        data = _receive(channel, length, fds)
        if len(data) == length:
            return marshal.loads(data), fds  # noqa: S302 - from a process of plaunch
    return None, fds


def receive_answer(channel: socket.socket, timeout: float) -> dict[str, Any]:
    """Receive one message without descriptors within `timeout` seconds.

    Raises:
        OSError: the other end is closed; `TimeoutError` after the timeout.
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
    room = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
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
