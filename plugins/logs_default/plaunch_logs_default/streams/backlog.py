"""The queue of output for a slow console: in memory, then in unlinked files."""

from __future__ import annotations

import math
import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from plaunch.values import Record, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

MEMORY_LIMIT = 4 << 20  # bytes in memory; more go to disk
MIN_SEGMENT = 4 << 20  # bytes of a file before the next one is opened
MAX_SEGMENT = 256 << 20


@plain_dataclass
class _Segment(Record):
    file: IO[bytes]
    size: int = 0
    position: int = 0  # everything before it has been read
    lines: int = 0  # line ends between `position` and `size`


def _open_unlinked_file() -> IO[bytes]:
    from tempfile import TemporaryFile  # only for slow consoles

    return TemporaryFile(prefix="plaunch_console_", buffering=0)


class Backlog:
    """A queue of bytes in bounded memory; drops the oldest data when the disk is full.

    Data that exceeds the memory limit goes to several files in the temporary directory. A file that
    has been read is closed, which frees its space. The files are unlinked: the system removes them
    when the process ends in any way. Not thread-safe: its writer calls it with a lock.

    Args:
        memory_limit: maximum bytes in memory.
        open_file: opens an unlinked file.
        pwrite: writes to it, like `os.pwrite`.
        limit: maximum bytes in memory and on disk; beyond it, the oldest files are dropped.
        min_segment: bytes of a file before the next one is opened.
    """

    def __init__(
        self,
        memory_limit: int = MEMORY_LIMIT,
        open_file: Callable[[], IO[bytes]] = _open_unlinked_file,
        pwrite: Callable[[int, memoryview, int], int] = os.pwrite,
        *,
        limit: float = math.inf,
        min_segment: int = MIN_SEGMENT,
    ) -> None:
        self.size = 0  # bytes
        self.in_memory = 0  # bytes of them
        self.dropped_lines = 0  # in total
        self._memory_limit = memory_limit
        self._limit = limit
        self._min_segment = min_segment
        self._open_file = open_file
        self._pwrite = pwrite
        self._segments: deque[_Segment] = deque()  # older than `_blocks`; each has unread data
        self._blocks: deque[bytes] = deque()

    def append(self, data: bytes) -> None:
        """Add `data`; drop the oldest data if neither memory nor the disk has room."""
        self._blocks.append(data)
        self.in_memory += len(data)
        self.size += len(data)
        if self.in_memory > self._memory_limit and not self._move_to_disk():
            while self.in_memory > self._memory_limit // 2:
                block = self._take_block()
                self.dropped_lines += block.count(b"\n")
        while self.size > self._limit and self._segments:
            self.dropped_lines += self._close_oldest()

    def take(self, size: int) -> bytes:
        """Remove and return the oldest data: about `size` bytes, up to a line end if possible.

        Empty if a file cannot be read; its data is dropped.
        """
        if self._segments:
            return self._read(self._segments[0], size)
        blocks = [self._take_block()]
        left = size - len(blocks[0])
        while self._blocks and len(self._blocks[0]) <= left:
            blocks.append(self._take_block())
            left -= len(blocks[-1])
        return b"".join(blocks)

    def count_lines(self) -> int:
        """The number of line ends in the queue."""
        in_memory = sum(block.count(b"\n") for block in self._blocks)
        return in_memory + sum(segment.lines for segment in self._segments)

    def clear(self) -> None:
        """Discard everything."""
        while self._segments:
            self._close_oldest()
        self._blocks.clear()
        self.size = self.in_memory = 0

    def _take_block(self) -> bytes:
        block = self._blocks.popleft()
        self.in_memory -= len(block)
        self.size -= len(block)
        return block

    def _move_to_disk(self) -> bool:
        """Move all data in memory to the disk, dropping the oldest files if it is full.

        False if the data still does not fit.
        """
        data = b"".join(self._blocks)
        while True:
            try:
                self._store(data)
            except OSError:
                kept = self.size
                while self._segments and self.size == kept:
                    self.dropped_lines += self._close_oldest()
                if self.size == kept:
                    return False
            else:
                self._blocks.clear()
                self.in_memory = 0
                return True

    def _store(self, data: bytes) -> None:
        segment = self._current_segment()
        done = 0
        with memoryview(data) as view:
            while done < len(data):
                # `size` changes only at the end: after an error, a partial write does not count.
                done += self._pwrite(segment.file.fileno(), view[done:], segment.size + done)
        segment.size += done
        segment.lines += data.count(b"\n")

    def _current_segment(self) -> _Segment:
        # An eighth of the queue: a full disk drops the oldest eighth, and few files are open.
        limit = min(max(self._min_segment, self.size // 8), MAX_SEGMENT)
        if self._segments and self._segments[-1].size < limit:
            return self._segments[-1]
        try:
            self._segments.append(_Segment(self._open_file()))
        except OSError:
            if not self._segments:
                raise
        return self._segments[-1]

    def _read(self, segment: _Segment, size: int) -> bytes:
        data = b""
        with suppress(OSError):
            wanted = min(size, segment.size - segment.position)
            data = os.pread(segment.file.fileno(), wanted, segment.position)
        if not data:
            self.dropped_lines += self._close_oldest()
            return b""
        if segment.position + len(data) < segment.size:
            data = data[: data.rfind(b"\n") + 1] or data
        segment.position += len(data)
        segment.lines -= data.count(b"\n")
        self.size -= len(data)
        if segment.position >= segment.size:
            self._close_oldest()
        return data

    def _close_oldest(self) -> int:
        """Close the oldest file; returns the number of unread lines in it."""
        segment = self._segments.popleft()
        self.size -= segment.size - segment.position
        with suppress(OSError):  # its data is not needed any more
            segment.file.close()
        return segment.lines
