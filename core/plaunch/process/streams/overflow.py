"""What a slow console cannot take, kept on disk: unlinked files, read in the order of writing."""

from __future__ import annotations

import errno
import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

MIN_SEGMENT = 4 << 20
MAX_SEGMENT = 256 << 20


@dataclass
class _Segment:
    file: IO[bytes]
    size: int = 0
    position: int = 0  # everything before it has been read
    lines: int = 0  # line ends between `position` and `size`


def _open_unlinked_file() -> IO[bytes]:
    from tempfile import TemporaryFile  # noqa: PLC0415 - only a slow console needs it

    return TemporaryFile(prefix="plaunch_console_", buffering=0)


class Overflow:
    """A queue of bytes on disk, which forgets its oldest part when the disk is full.

    It consists of several files, so that what has been read gives its space back at once. The
    files have no name (the system removes them with the process, however it ends) and lie in the
    temporary directory. Not thread-safe: the console holds its lock.
    """

    def __init__(
        self,
        open_file: Callable[[], IO[bytes]] = _open_unlinked_file,
        pwrite: Callable[[int, memoryview, int], int] = os.pwrite,
    ) -> None:
        self._open_file = open_file
        self._pwrite = pwrite
        self._segments: deque[_Segment] = deque()
        self.unread = 0  # bytes
        self.unread_lines = 0
        self.dropped_lines = 0  # in all, over the life of this object

    def append(self, data: bytes) -> bool:
        """Add `data`; drop the oldest data if the disk is full. False if even that did not help."""
        while True:
            try:
                self._store(data)
            except OSError:
                if not self._drop_oldest():
                    return False
            else:
                return True

    def _store(self, data: bytes) -> None:
        segment = self._current_segment()
        done = 0
        with memoryview(data) as view:
            while done < len(data):
                # After an error `size` still says what counts: nothing is half in.
                done += self._pwrite(segment.file.fileno(), view[done:], segment.size + done)
        lines = data.count(b"\n")
        segment.size += done
        segment.lines += lines
        self.unread += done
        self.unread_lines += lines

    def _current_segment(self) -> _Segment:
        # An eighth of all: a full disk then costs the oldest eighth, and descriptors stay few.
        limit = min(max(MIN_SEGMENT, self.unread // 8), MAX_SEGMENT)
        if self._segments and self._segments[-1].size < limit:
            return self._segments[-1]
        try:
            segment = _Segment(self._open_file())
        except OSError:
            if not self._segments:
                raise
            return self._segments[-1]
        self._segments.append(segment)
        return segment

    def _drop_oldest(self) -> bool:
        while self._segments:
            segment = self._segments.popleft()
            self._close_segment(segment)
            if segment.position < segment.size:
                self.dropped_lines += segment.lines
                return True
        return False

    def _close_segment(self, segment: _Segment) -> None:
        self.unread -= segment.size - segment.position
        self.unread_lines -= segment.lines
        # The file has no name and its content is of no more use: an error changes nothing.
        with suppress(OSError):
            segment.file.close()

    def read(self, size: int) -> bytes:
        """Take the oldest data, at most `size` bytes and up to a line end if there is one.

        Raises:
            OSError: the disk does not give back what was written; that part is dropped.
        """
        segment = self._segments[0]
        wanted = min(size, segment.size - segment.position)
        try:
            data = os.pread(segment.file.fileno(), wanted, segment.position)
        except OSError:
            self._drop_oldest()
            raise
        if not data:
            self._drop_oldest()
            raise OSError(errno.EIO, "an overflow file is shorter than what was written to it")
        if segment.position + len(data) < segment.size:
            data = data[: data.rfind(b"\n") + 1] or data
        lines = data.count(b"\n")
        segment.position += len(data)
        segment.lines -= lines
        self.unread -= len(data)
        self.unread_lines -= lines
        if segment.position >= segment.size:
            self._close_segment(self._segments.popleft())
        return data

    def close(self) -> None:
        """Forget everything."""
        while self._segments:
            self._close_segment(self._segments.popleft())
