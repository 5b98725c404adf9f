"""The heartbeats of the workers of one node: the memory that they write into, and what it says.

What is where in it, `beating` has, which workers import.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import NamedTuple

from plaunch_hang.beating import FILE_NAME, SIZE

_PLACE = struct.Struct("=6q16x64s")
_MOST_WORKERS = 1 << 16


class Beat(NamedTuple):
    """What a worker has said so far.

    Args:
        number: how often it has beaten.
        step: the step that it said last; -1 if it said none.
        total: the number of steps that it said; -1 if it said none.
        longest: seconds between two beats, at most, outside of sections.
        section: seconds that the section may take that it is in; 0 if it is in none, negative if
            that has no end.
        name: what that section is called.
    """

    number: int = 0
    step: int = -1
    total: int = -1
    longest: float = 0.0
    section: float = 0.0
    name: str = ""


class Beats:
    """The memory, which is gone with the last process that has it.

    Raises:
        OSError: the system has none, or no such files in memory.
    """

    def __init__(self) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no files in memory")
        self._fd = os.memfd_create(FILE_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # A worker that has mapped it would get SIGBUS if another one truncated it.
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)

    def variable(self, local_rank: int) -> str:
        """What the worker of that local rank is told, in a place that is empty again.

        Raises:
            OSError: there is no room.
        """
        if not 0 <= local_rank < _MOST_WORKERS:
            raise OSError(f"there is no place for local rank {local_rank}")
        # Written, and so there: a worker that writes never has to find room.
        os.pwrite(self._fd, bytes(SIZE), local_rank * SIZE)
        return f"/proc/{os.getpid()}/fd/{self._fd}@{local_rank * SIZE}"

    def read(self, local_rank: int) -> Beat:
        """What the worker of that local rank has said."""
        data = os.pread(self._fd, _PLACE.size, local_rank * SIZE)
        if len(data) < _PLACE.size:
            return Beat()
        _, count, step, total, longest, section, name = _PLACE.unpack(data)
        text = name.rstrip(b"\0").decode("utf-8", "replace")
        return Beat(
            max(count, 0),
            max(step, 0) - 1,
            max(total, 0) - 1,
            max(longest, 0) / 1e9,
            section / 1e3,
            "".join(c if c.isprintable() else "?" for c in text),
        )

    def close(self) -> None:
        """Give the memory back."""
        os.close(self._fd)
