"""The listening socket of one launch, in a folder that only its user can access."""

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
_MAX_SWEPT = 64  # sockets that one launch checks


class LaunchSocket:
    """A listening socket and its path."""

    def __init__(self, listener: socket.socket, path: str) -> None:
        self.listener = listener
        self.path = path

    def remove(self) -> None:
        """Remove the path, so that clients no longer find the launch."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)


def open_socket(run_id: str, environ: Mapping[str, str], user: int) -> LaunchSocket:
    """Listen in the first usable folder, and remove sockets that dead launches left there.

    Args:
        run_id: the id of the job.
        environ: the environment variables.
        user: the user id of the launch.

    Raises:
        FolderError: no folder can be used; the message says why.
    """
    problems = []
    for folder in candidates(environ, user):
        try:
            create(folder, user)
            launch_socket = _listen(folder, run_id)
        except (FolderError, OSError) as error:
            problems.append(str(error))
            continue
        sweep(folder)
        return launch_socket
    raise FolderError("; ".join(problems))


def sweep(folder: str) -> None:
    """Remove the sockets in `folder` of launches that have ended."""
    for _, path in zip(range(_MAX_SWEPT), sockets(folder), strict=False):
        name = read_name(os.path.basename(path))
        # Connect only if no process has the pid, to disturb no running launch. In another pid
        # namespace the pid means nothing, so the connection decides.
        if name is not None and not os.path.exists(f"/proc/{name[2]}"):
            remove_stale(path)


def remove_stale(path: str) -> bool:
    """Remove a socket without a listener; return whether it was one. Does not block."""
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        is_stale = client.connect_ex(path) in (errno.ECONNREFUSED, errno.ENOENT)
    if is_stale:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return is_stale


def _listen(folder: str, run_id: str) -> LaunchSocket:
    name = socket_name(folder, run_id, os.getpid())
    # Rename it once it listens: a socket with a final name has a listener, or its launch is dead.
    first = os.path.join(folder, f".{name}")
    launch_socket = LaunchSocket(socket.socket(socket.AF_UNIX), os.path.join(folder, name))
    try:
        launch_socket.listener.bind(first)
        try:
            launch_socket.listener.listen(_BACKLOG)
            launch_socket.listener.setblocking(False)
            os.rename(first, launch_socket.path)
        except BaseException:
            os.unlink(first)
            raise
    except BaseException:
        launch_socket.listener.close()
        raise
    return launch_socket
