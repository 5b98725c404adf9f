"""The socket of one launch: opened so that nobody else can be behind it, and closed with it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from typing import TYPE_CHECKING

from plaunch_control.folder import (
    FolderError,
    candidates,
    create,
    read_name,
    socket_name,
    sockets,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_BACKLOG = 64
_MOST_SWEPT = 64  # sockets that one launch looks at


class Door:
    """A listening socket, and the path under which it is found."""

    def __init__(self, listener: socket.socket, path: str) -> None:
        self.listener = listener
        self.path = path

    def remove(self) -> None:
        """Let nobody find it any more."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)


def open_door(run_id: str, environ: Mapping[str, str], user: int) -> Door:
    """Listen in the first folder that can be used, and remove what dead launches left there.

    Args:
        run_id: the id of the job.
        environ: the environment variables.
        user: whose launch it is.

    Raises:
        FolderError: no folder can be used; the message says why each cannot.
    """
    problems = []
    for folder in candidates(environ, user):
        try:
            create(folder, user)
            door = _listen(folder, run_id)
        except (FolderError, OSError) as error:
            problems.append(str(error))
            continue
        sweep(folder)
        return door
    raise FolderError("; ".join(problems))


def sweep(folder: str) -> None:
    """Remove the sockets in `folder` that nobody listens at any more."""
    for _, path in zip(range(_MOST_SWEPT), sockets(folder), strict=False):
        told = read_name(os.path.basename(path))
        # Its process may be in another namespace, where pids are others; none is disturbed for
        # nothing that is in ours.
        if told is not None and not os.path.exists(f"/proc/{told[2]}"):
            remove_stale(path)


def remove_stale(path: str) -> bool:
    """Remove a socket at which nobody listens; whether it was one. Does not wait."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        is_stale = asking.connect_ex(path) in (errno.ECONNREFUSED, errno.ENOENT)
    if is_stale:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return is_stale


def _listen(folder: str, run_id: str) -> Door:
    name = socket_name(folder, run_id, os.getpid())
    # What has a name of ours is listened at, or its launch is dead.
    first = os.path.join(folder, f".{name}")
    door = Door(socket.socket(socket.AF_UNIX), os.path.join(folder, name))
    try:
        door.listener.bind(first)
        try:
            door.listener.listen(_BACKLOG)
            door.listener.setblocking(False)
            os.rename(first, door.path)
        except BaseException:
            os.unlink(first)
            raise
    except BaseException:
        door.listener.close()
        raise
    return door
