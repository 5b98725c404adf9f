"""The last lines of a worker's stderr, which explain its failure."""

from __future__ import annotations

import os
import stat
import threading

from plaunch_logs_default.streams.sinks import ByteSink

KEPT_LINES = 20
KEPT_BYTES = 64 * 1024


class Ring(ByteSink):
    """Remembers the end of a stream in bounded memory; splits it into lines only when asked."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._data = bytearray()
        self._size = 0  # of the whole stream
        self._lock = threading.Lock()  # the reader's thread writes, the agent asks

    def write(self, data: bytes) -> None:
        """Add the next piece of the stream."""
        with self._lock:
            self._data += data[-self._kept_bytes :]
            self._size += len(data)
            # Cut at twice the size: each byte is then moved at most once, however small the pieces.
            if len(self._data) > 2 * self._kept_bytes:
                del self._data[: -self._kept_bytes]

    def last_lines(self) -> list[str]:
        """The last lines that were written, oldest first."""
        with self._lock:
            data = bytes(self._data[-self._kept_bytes :])
            is_cut = len(data) < self._size
        return split_last_lines(data, is_cut=is_cut)


def read_last_lines(path: str, start: int = 0) -> list[str]:
    """The last lines of the file at `path`, from byte `start` on; none if it cannot be read.

    `start` is where this worker's part begins in a file that others wrote before. Anything but a
    regular file (`/dev/null`, a pipe) has no last lines.
    """
    try:
        # Without O_NONBLOCK the opening of a named pipe waits for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", 0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return []
            start = start if start <= status.st_size else 0  # someone truncated it
            first = max(start, status.st_size - KEPT_BYTES)
            data = os.pread(file.fileno(), status.st_size - first, first)
    except OSError:
        return []  # the file is gone or unreadable; this is the way to a failure report
    return split_last_lines(data, is_cut=first > start)


def split_last_lines(data: bytes, *, is_cut: bool = False) -> list[str]:
    r"""The last lines of `data`, at most `KEPT_LINES`, as text; see `plaunch.process.shorten`.

    A progress bar, which overwrites itself with `\r`, is reduced to its last state. Bytes that are
    not UTF-8 become replacement characters. Empty lines at the end are left out. With `is_cut` the
    first line lacks its beginning and is left out, unless it is the only one.
    """
    lines = data.rstrip().split(b"\n")
    if is_cut and len(lines) > 1:
        del lines[0]
    last = (line.rstrip().rpartition(b"\r")[2] for line in lines)
    texts = [line.decode("utf-8", "replace") for line in last]
    if len(texts) > KEPT_LINES:
        from plaunch.process import shorten  # failures only

        texts = shorten(texts, KEPT_LINES)
    return texts if any(texts) else []
