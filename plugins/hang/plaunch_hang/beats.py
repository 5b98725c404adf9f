"""The memory that the workers of one node write their heartbeats to; `beating` has its layout."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import NamedTuple

from plaunch_hang.beating import FILE_NAME, SIZE

_PLACE = struct.Struct("=6q16x64s")
_MOST_WORKERS = 1 << 16


class HeartbeatState(NamedTuple):
    """The heartbeats of a worker so far.

    Args:
        number: the number of heartbeats.
        step: the last reported step; -1 if none was reported.
        total: the last reported number of steps; -1 if none was reported.
        longest: the longest time between two heartbeats outside of sections, in seconds.
        section: the time limit of its current section in seconds; 0 if it is in none, negative for
            no limit.
        name: the name of that section.
    """

    number: int = 0
    step: int = -1
    total: int = -1
    longest: float = 0.0
    section: float = 0.0
    name: str = ""


class HeartbeatMemory:
    """A memory file with a slot for each worker; the kernel frees it with its last user.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memory files (memfd_create)")
        self._fd = os.memfd_create(FILE_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # If a process truncated the file, others that map it would get SIGBUS.
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)

    def variable(self, local_rank: int) -> str:
        """Clear the slot of a local rank, and return the value of the worker's variable.

        Raises:
            OSError: there is no memory.
        """
        if not 0 <= local_rank < _MOST_WORKERS:
            raise OSError(f"there is no slot for local rank {local_rank}")
        # Writing allocates the memory, so that the worker's writes cannot fail.
        os.pwrite(self._fd, bytes(SIZE), local_rank * SIZE)
        return f"/proc/{os.getpid()}/fd/{self._fd}@{local_rank * SIZE}"

    def read(self, local_rank: int) -> HeartbeatState:
        """Read the heartbeats of a local rank."""
        data = os.pread(self._fd, _PLACE.size, local_rank * SIZE)
        if len(data) < _PLACE.size:
            return HeartbeatState()
        _, count, step, total, longest, section, name = _PLACE.unpack(data)
        text = name.rstrip(b"\0").decode("utf-8", "replace")
        return HeartbeatState(
            max(count, 0),
            max(step, 0) - 1,
            max(total, 0) - 1,
            max(longest, 0) / 1e9,
            section / 1e3,
            "".join(c if c.isprintable() else "?" for c in text),
        )

    def close(self) -> None:
        """Close the memory file."""
        os.close(self._fd)
