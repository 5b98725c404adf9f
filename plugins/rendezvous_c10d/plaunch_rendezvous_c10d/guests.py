"""Who is connected to the store that this process hosts, as the kernel tells."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ESTABLISHED = "01"
_LOCAL, _REMOTE, _STATE, _INODE = 1, 2, 3, 9  # fields of a line


def has_guests(port: int) -> bool:
    """Whether another process has a connection to `port`, at which this one listens.

    A process that is paused still has its connections, one that has died has none, also if nobody
    could be told. False as well where the kernel does not tell.
    """
    own = _own_sockets()
    there, ours = set(), set()
    for fields in _connections():
        if fields[_STATE] != _ESTABLISHED:
            continue
        if _port_of(fields[_LOCAL]) == port:
            there.add(_port_of(fields[_REMOTE]))
        elif _port_of(fields[_REMOTE]) == port and fields[_INODE] in own:
            ours.add(_port_of(fields[_LOCAL]))
    # Whoever is elsewhere and has the same port as one of ours has others beside it.
    return bool(there - ours)


def _connections() -> Iterator[list[str]]:
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:
            next(lines, None)
            for line in lines:
                yield line.split()


def _own_sockets() -> set[str]:
    """The inodes of this process's sockets."""
    found = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                kind, _, inode = os.readlink(f"/proc/self/fd/{fd}").partition(":[")
                if kind == "socket":
                    found.add(inode.rstrip("]"))
    return found


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
