"""Sinks for the unchanged bytes of a stream: a file, the console."""

from __future__ import annotations

import abc
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from plaunch_logs_default.streams.descriptors import copy_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_logs_default.streams.console import Console
    from plaunch_logs_default.streams.warning_log import WarningLog

HOLD = 0.05  # seconds to hold back an incomplete line
LONG_HOLD = 0.5  # the same after a long piece, which was probably cut
LONG_PIECE = 4095  # maximum bytes of a read from a terminal; reads from a pipe may be longer
MAX_HELD = 64 << 10  # bytes
SIZE_INTERVAL = 1.0  # seconds between two checks of the window size


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


class WindowSizeSync(ByteSink):
    """Copies the window size of the real terminal to a pseudo-terminal.

    Checked when the worker writes, at most once per `SIZE_INTERVAL`, so that a program that fits
    its output to the window has the current size for its next line.
    """

    def __init__(
        self, like_fd: int, master: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._like_fd = like_fd
        self._master = master
        self._clock = clock
        self._checked_at = clock()

    def write(self, data: bytes) -> None:
        """Copy the window size if the last check was `SIZE_INTERVAL` ago."""
        del data
        now = self._clock()
        if now - self._checked_at >= SIZE_INTERVAL:
            self._checked_at = now
            with suppress(OSError):  # the real terminal may be gone; its console reports that
                copy_size(self._like_fd, self._master)
