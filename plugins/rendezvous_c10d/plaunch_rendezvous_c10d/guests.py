"""The clients of the store that this process hosts.

torch does not list them, but its sockets are descriptors of this process. Reading them needs no
further descriptor, so it works when there are none left.
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


def find_guests(port: int) -> dict[int, int]:
    """Return the connections of other processes to `port`, on which this one listens.

    A suspended process is still connected; a dead one is not.

    Returns:
        The descriptor of each, by its inode; later ones usually have higher inodes.
    """
    served: list[tuple[int, int, int]] = []  # the other end's port, the inode, the descriptor
    own = set()
    for fd in open_descriptors():
        ends = _ends_of(fd)
        if ends is None:
            continue
        local, remote, inode = ends
        if local == port:
            served.append((remote, inode, fd))
        elif remote == port:
            own.add(local)
    # A remote client with the same port as an own connection has other connections as well.
    return {inode: fd for remote, inode, fd in served if remote not in own}


def open_descriptors() -> Iterable[int]:
    """Return the descriptors of this process, or all possible numbers if they cannot be listed."""
    # Listing takes one more descriptor, which may be missing.
    return list_numbers("self/fd") or range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def hang_up_guest(fd: int, inode: int) -> bool:
    """Shut down a connection found by `find_guests`; False if it is closed already."""
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
    """Return the ports of both ends of a connection and its inode; None for other descriptors."""
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
    except OSError:  # it is listening, or has been closed
        return None
    finally:
        sock.detach()
