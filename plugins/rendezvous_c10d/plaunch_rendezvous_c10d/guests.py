"""Who is connected to the store that this process hosts.

torch does not name them, but its sockets are descriptors of this process. Looking at them takes no
further descriptor, so that it can be done when there is none.
"""

from __future__ import annotations

import os
import resource
import socket
import stat
from typing import TYPE_CHECKING

from plaunch.process import list_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable


def has_guests(port: int) -> bool:
    """Whether another process has a connection to `port`, at which this one listens.

    A process that is paused still has its connections, one that has died has none, even without
    notice.
    """
    return bool(find_guests(port))


def find_guests(port: int) -> dict[int, int]:
    """The connections of other processes to `port`, at which this one listens.

    Returns:
        The descriptor of each, by its inode; later ones mostly have higher inodes.
    """
    served: list[tuple[int, int, int]] = []  # the other end's port, the inode, the descriptor
    ours = set()
    for fd in open_descriptors():
        ends = _ends_of(fd)
        if ends is None:
            continue
        local, remote, inode = ends
        if local == port:
            served.append((remote, inode, fd))
        elif remote == port:
            ours.add(local)
    # Whoever is elsewhere and has the same port as one of ours has others beside it.
    return {inode: fd for remote, inode, fd in served if remote not in ours}


def open_descriptors() -> Iterable[int]:
    """The descriptors of this process; all that there may be if they cannot be listed."""
    # Listing takes one more descriptor, which may be missing.
    return list_numbers("self/fd") or range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def hang_up_guest(fd: int, inode: int) -> bool:
    """End a connection that `find_guests` has found; False if it is something else by now."""
    try:
        if os.fstat(fd).st_ino != inode:
            return False
        sock = socket.socket(fileno=fd)
    except OSError:
        return False
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    else:
        return True
    finally:
        sock.detach()  # it is torch's


def _ends_of(fd: int) -> tuple[int, int, int] | None:
    """The ports of both ends of a connection, and its inode; None if it is something else."""
    try:
        found = os.fstat(fd)
        if not stat.S_ISSOCK(found.st_mode):
            return None
        sock = socket.socket(fileno=fd)
    except OSError:
        return None
    try:
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        return sock.getsockname()[1], sock.getpeername()[1], found.st_ino
    except OSError:  # it listens, or has ended
        return None
    finally:
        sock.detach()
