"""Where the bytes of a stream go as they are: to a file, to the console."""

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
    from plaunch_logs_default.streams.notices import Notices

HOLD = 0.05  # seconds that the rest of a line is waited for
LONG_HOLD = 0.5  # seconds after a long piece, whose rest is sure to come
LONG_PIECE = 4095  # bytes that a read of a terminal returns at most; a pipe's pieces are longer
MAX_HELD = 64 << 10  # bytes
SIZE_INTERVAL = 1.0  # seconds between two looks at a window


class ByteSink(abc.ABC):
    """Takes the bytes of one stream, in the reader's thread; waits only for the disk."""

    due: float | None = None
    """When `flush` wants to be called, in monotonic seconds; None if nothing is held back."""

    @abc.abstractmethod
    def write(self, data: bytes) -> None:
        """Take the next piece of the stream."""

    def flush(self) -> None:  # noqa: B027 - most hold nothing back
        """Pass on what was held back; called at `due`."""

    def close(self) -> None:  # noqa: B027
        """The stream is over: pass on what is left."""


class RawToConsole(ByteSink):
    """Shows a stream as it is, as soon as it comes, line by line where it has lines.

    What a worker writes at once may arrive in pieces, which end anywhere: a terminal gives 4,095
    bytes at most. So what follows the last line end waits a moment for the rest of its line, lest
    another worker's line gets in between. A prompt or a progress bar appears after that moment.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._held = b""

    def write(self, data: bytes) -> None:
        """Show the lines that `data` completes, and sooner or later the rest."""
        is_long = len(data) >= LONG_PIECE
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if cut or is_long or self.due is None:
            # Unless a line grows by and by (dots, say), which must not wait for its end.
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

    When the disk is full, or fails, the lines that do not fit are counted and the stream goes on:
    the worker must not suffer. As soon as there is space again the file continues with the next
    whole line.

    Args:
        fd: the open file; closed by `close`.
        path: its name, for messages.
        notices: where trouble is reported.
        write: writes to the descriptor, as `os.write` does.
    """

    def __init__(
        self,
        fd: int,
        path: str,
        notices: Notices,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self._fd = fd
        self._path = path
        self._notices = notices
        self._write = write
        self.lost_lines = 0
        self._ends_in_line = False  # the last byte in the file is not a line end
        self._repair = b""  # what must come before the next line, after something was lost
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
        text = self._repair + data
        position = 0
        try:
            while position < len(text):
                position += self._write(self._fd, text[position:])
        except OSError as error:
            self._count_lost(text[max(position, len(self._repair)) :], error)
        if position:
            self._ends_in_line = text[position - 1 : position] != b"\n"
        is_whole = position == len(text)
        self._repair = b"\n" if self._ends_in_line and not is_whole else b""

    def _count_lost(self, data: bytes, error: OSError) -> None:
        if not (self.lost_lines or self._skips_to_line):
            self._notices.warn(
                "cannot write to %r (%s): lines are missing there until it is possible again; "
                "the job goes on",
                self._path,
                error.strerror or error,
            )
        self.lost_lines += data.count(b"\n")
        self._skips_to_line = not data.endswith(b"\n")

    def close(self) -> None:
        """Close the file and report what is missing in it."""
        if self._skips_to_line:
            self.lost_lines += 1
        if self.lost_lines:
            self._notices.warn("lines missing in %r: %d", self._path, self.lost_lines)
        try:
            os.close(self._fd)
        except OSError as error:
            # Network file systems report a failed write only now.
            self._notices.warn(
                "the end of %r may be missing (%s)", self._path, error.strerror or error
            )


class SizeKeeper(ByteSink):
    """Keeps the window size of a pseudo-terminal that of the real one.

    The size is looked at when the worker writes, at most once per `SIZE_INTERVAL`: a program that
    fits its output to the window has then the current size for its next line.
    """

    def __init__(
        self, like_fd: int, master: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._like_fd = like_fd
        self._master = master
        self._clock = clock
        self._looked = clock()

    def write(self, data: bytes) -> None:
        """Take note that the worker has written."""
        del data
        now = self._clock()
        if now - self._looked >= SIZE_INTERVAL:
            self._looked = now
            # The real terminal may be gone; its console reports that.
            with suppress(OSError):
                copy_size(self._like_fd, self._master)
