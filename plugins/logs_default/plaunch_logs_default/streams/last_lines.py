"""The last lines of a worker's stderr, which usually explain its failure."""

from __future__ import annotations

import os
import stat
import threading

from plaunch_logs_default.streams.sinks import ByteSink

KEPT_LINES = 20
KEPT_BYTES = 64 * 1024


class LastLinesSink(ByteSink):
    """Keeps the end of a stream in bounded memory; splits it into lines on request."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._data = bytearray()
        self._size = 0  # of the whole stream
        self._lock = threading.Lock()  # the reader's thread writes, the agent's reads

    def write(self, data: bytes) -> None:
        """Add the next piece of the stream."""
        with self._lock:
            self._data += data[-self._kept_bytes :]
            self._size += len(data)
            # Cut at twice the size: then each byte is moved at most once, even with small pieces.
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

    `start` is where this worker's output begins in a file that existed before. Files that are not
    regular (`/dev/null`, a pipe) have no last lines.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe waits for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", 0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return []
            start = start if start <= status.st_size else 0  # it was truncated
            first = max(start, status.st_size - KEPT_BYTES)
            data = os.pread(file.fileno(), status.st_size - first, first)
    except OSError:
        return []  # it is gone or unreadable; the failure is reported without it
    return split_last_lines(data, is_cut=first > start)


def split_last_lines(data: bytes, *, is_cut: bool = False) -> list[str]:
    r"""The last lines of `data`, at most `KEPT_LINES`, as text; see `plaunch.process.shorten`.

    A progress bar, which overwrites itself with `\r`, is reduced to its last state. Bytes that are
    not UTF-8 become replacement characters. Trailing empty lines are omitted. `is_cut` means that
    the first line is incomplete; it is omitted unless it is the only one.
    """
    lines = data.rstrip().split(b"\n")
    if is_cut and len(lines) > 1:
        del lines[0]
    last = (line.rstrip().rpartition(b"\r")[2] for line in lines)
    texts = [line.decode("utf-8", "replace") for line in last]
    if len(texts) > KEPT_LINES:
        from plaunch.process import shorten  # only for failures

        texts = shorten(texts, KEPT_LINES)
    return texts if any(texts) else []
