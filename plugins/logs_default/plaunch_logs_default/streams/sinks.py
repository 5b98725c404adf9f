"""Sinks for the unchanged bytes of a stream: the console, a file, the last lines in memory."""

from __future__ import annotations

import abc
import os
import stat
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_logs_default.streams.consoles import Console
    from plaunch_logs_default.streams.writer import WarningLog

HOLD = 0.05  # seconds to hold back an incomplete line
LONG_HOLD = 0.5  # the same after a long piece, which was probably cut
LONG_PIECE = 4095  # maximum bytes of a read from a terminal; reads from a pipe may be longer
MAX_HELD = 64 << 10  # bytes
KEPT_LINES = 20  # the last lines of stderr, which usually explain a failure
KEPT_BYTES = 64 << 10
TRACEBACK_HEAD = b"Traceback (most recent call last)"
# Without O_NONBLOCK, opening a named pipe waits for a writer.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class ByteSink(abc.ABC):
    """Receives the bytes of one stream, on the reader's thread; may block on the disk only."""

    due: float | None = None
    """When `flush` must be called, in monotonic seconds; None if nothing is held back."""

    @abc.abstractmethod
    def write(self, data: bytes) -> None:
        """Receive the next piece of the stream."""

    def flush(self) -> None:  # noqa: B027 - most sinks hold nothing back
        """Pass on what was held back; called at `due`."""

    def close(self) -> None:  # noqa: B027
        """Pass on what is left; called at the end of the stream."""


class RawToConsole(ByteSink):
    """Shows a stream unchanged, in whole lines where possible.

    One write of a worker may arrive in several pieces: a read from a terminal returns at most 4,095
    bytes. So an incomplete line is held back for `HOLD` seconds, in order not to mix with another
    worker's line. A prompt or a progress bar appears after that time.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._held = b""

    def write(self, data: bytes) -> None:
        """Show the lines that `data` completes, and hold back the rest."""
        is_long = len(data) >= LONG_PIECE
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if cut or is_long or self.due is None:
            # Do not extend the time for a line that grows slowly, such as dots of progress.
            self.due = self._clock() + (LONG_HOLD if is_long else HOLD)
        cut += len(self._held) if cut else 0
        data = self._held + data
        if len(data) - cut > MAX_HELD:
            cut = len(data)
        shown, self._held = data[:cut], data[cut:]
        if not self._held:
            self.due = None
        self._console.put(shown, self, is_raw=True)

    def flush(self) -> None:
        """Show what was held back."""
        held, self._held, self.due = self._held, b"", None
        self._console.put(held, self, is_raw=True)

    close = flush


class FileSink(ByteSink):
    """A file that gets a stream byte for byte.

    If the disk is full or fails, the lines that could not be written are counted, and the worker
    continues. When writing succeeds again, the file continues with the next whole line.

    Args:
        fd: the open file; closed by `close`.
        path: its name, for messages.
        log: logs warnings.
        write: writes to the descriptor, like `os.write`.
    """

    def __init__(
        self,
        fd: int,
        path: str,
        log: WarningLog,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self._fd = fd
        self._path = path
        self._log = log
        self._write = write
        self.lost_lines = 0
        self._ends_in_line = False  # the last byte in the file is not a line end
        self._separator = b""  # to write before the next line, after a loss inside a line
        self._skips_to_line = False  # the last byte that was lost is not a line end

    def write(self, data: bytes) -> None:
        """Write `data`, or count its lines as lost."""
        if self._skips_to_line:
            _, end, data = data.partition(b"\n")
            if end:
                self.lost_lines += 1
                self._skips_to_line = False
        if not data:
            return
        text = self._separator + data
        position = 0
        try:
            while position < len(text):
                position += self._write(self._fd, text[position:])
        except OSError as error:
            self._count_lost(text[max(position, len(self._separator)) :], error)
        if position:
            self._ends_in_line = text[position - 1 : position] != b"\n"
        is_whole = position == len(text)
        self._separator = b"\n" if self._ends_in_line and not is_whole else b""

    def _count_lost(self, data: bytes, error: OSError) -> None:
        if not (self.lost_lines or self._skips_to_line):
            self._log.warn(
                "cannot write to %r (%s): lines are missing there until it is possible again; "
                "the job continues",
                self._path,
                error.strerror or error,
            )
        self.lost_lines += data.count(b"\n")
        self._skips_to_line = not data.endswith(b"\n")

    def close(self) -> None:
        """Close the file and report the number of missing lines, if any."""
        if self._skips_to_line:
            self.lost_lines += 1
        if self.lost_lines:
            self._log.warn("lines missing in %r: %d", self._path, self.lost_lines)
        try:
            os.close(self._fd)
        except OSError as error:
            # Network file systems may report a failed write only now.
            self._log.warn("the end of %r may be missing (%s)", self._path, error.strerror or error)


class LastLinesSink(ByteSink):
    """Keeps the end of a stream in bounded memory; splits it into lines on request."""

    def __init__(
        self, kept_bytes: int = KEPT_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        self.traceback_time: float | None = None  # when the last traceback began; epoch seconds
        self._kept_bytes = kept_bytes
        self._clock = clock
        self._data = bytearray()
        self._size = 0  # of the whole stream
        self._lock = threading.Lock()  # the reader's thread writes, the agent's reads

    def write(self, data: bytes) -> None:
        """Add the next piece of the stream."""
        with self._lock:
            before = len(self._data)
            self._data += data[-self._kept_bytes :]
            self._size += len(data)
            # The head may be in two pieces.
            if self._data.find(TRACEBACK_HEAD, max(before - len(TRACEBACK_HEAD) + 1, 0)) >= 0:
                self.traceback_time = self._clock()
            # Cut at twice the size: then each byte is moved at most once, even with small pieces.
            if len(self._data) > 2 * self._kept_bytes:
                del self._data[: -self._kept_bytes]

    def last_lines(self) -> list[str]:
        """The last lines that were written, oldest first."""
        with self._lock:
            data = bytes(self._data[-self._kept_bytes :])
            is_cut = len(data) < self._size
        return split_last_lines(data, is_cut=is_cut)


class TracebackFinder:
    """Finds tracebacks at the end of a file that a worker writes.

    Args:
        path: the file.
        start: where the output of this worker begins.
        clock: seconds since the epoch. The times of files may be those of another machine.
    """

    def __init__(self, path: str, start: int, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._next = start
        self._clock = clock
        self._time: float | None = None

    def traceback_time(self) -> float | None:
        """When a call has found the last traceback, in seconds since the epoch.

        None if there is none, or the file cannot be read.
        """
        try:
            with open(os.open(self._path, _READ_FLAGS), "rb", 0) as file:
                status = os.fstat(file.fileno())
                if stat.S_ISREG(status.st_mode) and status.st_size != self._next:
                    first = max(min(self._next, status.st_size) - len(TRACEBACK_HEAD) + 1, 0)
                    first = max(first, status.st_size - KEPT_BYTES)
                    data = os.pread(file.fileno(), status.st_size - first, first)
                    self._next = status.st_size
                    if TRACEBACK_HEAD in data:
                        self._time = self._clock()
        except OSError:
            return None
        return self._time


def read_last_lines(path: str, start: int = 0) -> list[str]:
    """The last lines of the file at `path`, from byte `start` on; none if it cannot be read.

    `start` is where this worker's output begins in a file that existed before. Files that are not
    regular (`/dev/null`, a pipe) have no last lines.
    """
    try:
        with open(os.open(path, _READ_FLAGS), "rb", 0) as file:
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
