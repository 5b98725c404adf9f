"""A log file of limited size, which the launcher writes and rotates."""

from __future__ import annotations

import os
from contextlib import suppress

from plaunch_logs_default.streams.routes import above_standard


class RotatingFile:
    """The log file of one stream; rotates before it would exceed `size` bytes.

    Older files are numbered; `stdout.log.1` is the newest of them. Together the files have exactly
    the bytes that the worker wrote. A file ends with a whole line if possible.

    Args:
        path: the file; existing content stays, and counts towards the size.
        size: maximum size of a file in bytes.
        kept: how many older files to keep.
        fd: the open file; with -1, the first write opens it.
    """

    def __init__(self, path: str, size: int, kept: int, *, fd: int = -1) -> None:
        self._path = path
        self._max_size = size
        self._kept = kept
        self._fd = fd
        self._size = 0 if fd < 0 else os.fstat(fd).st_size  # bytes in the file

    def write(self, data: bytes) -> None:
        """Write all of `data`.

        Raises:
            OSError: it cannot be written; a piece that was written in part is removed again.
        """
        while data:
            if self._fd < 0:
                self._open()
            room = self._max_size - self._size
            end = len(data) if len(data) <= room else data.rfind(b"\n", 0, max(room, 0)) + 1
            if not end and (room <= 0 or self._size):
                self._rotate()
                continue
            end = end or room
            self._write(data[:end])
            data = data[end:]

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _write(self, data: bytes) -> None:
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += done

    def _rotate(self) -> None:
        self.close()
        older = [self._path, *(f"{self._path}.{number}" for number in range(1, self._kept + 1))]
        for number in range(self._kept, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(older[number - 1], older[number])
        self._open()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = above_standard(os.open(self._path, flags, 0o666))
        self._size = os.fstat(self._fd).st_size
