"""A console with its own writer thread, so that nothing else waits for it."""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import select
import sys
import time
from typing import TYPE_CHECKING

from plaunch_logs_default.streams.writer import OutputWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from plaunch_logs_default.streams.backlog import Backlog
    from plaunch_logs_default.streams.warning_log import WarningLog


class Console(OutputWriter):
    """One of the launcher's own output streams, which may be slow.

    `put` never blocks on the console. Pending output is kept in a `Backlog`. When the disk is full
    too, the oldest lines are dropped, and a line in their place says how many. If the console
    cannot be written to (its reader is gone), this is reported once, and its output is discarded
    from then on.

    Args:
        fd: the descriptor; stays open, with its flags unchanged, as other processes share it.
        label: its name in messages, such as "stdout".
        log: logs warnings.
        after: an earlier console on the same descriptor, whose pending output is written first.
        backlog: keeps pending output.
        write: writes to the descriptor, like `os.write`.
        clock: monotonic seconds.
    """

    kind = "console"
    too_slow = "the console was too slow, the disk is full"
    no_room = "no disk space is left to buffer it"
    full = "is a file that cannot grow"

    def __init__(
        self,
        fd: int,
        label: str,
        log: WarningLog,
        *,
        after: Console | None = None,
        backlog: Backlog | None = None,
        write: Callable[[int, bytes], int] = os.write,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(label, log, backlog=backlog, clock=clock)
        self._fd = fd
        self._write_to = write
        self._after = after
        self.is_terminal = os.isatty(fd)
        self._owner: object = None  # the owner of the incomplete last line
        self._owner_is_raw = False

    @property
    def is_complete(self) -> bool:
        """Whether all output has been shown, or will be."""
        return not self._is_broken and not self.missing_lines

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not written yet, also of `after`. Thread-safe; the value may be stale."""
        after = self._after
        return super().waiting_bytes + (0 if after is None else after.waiting_bytes)

    def _run(self) -> None:
        if self._after is not None:
            self._after.wait(lambda: False)
            self._after = None
        super()._run()

    def put(self, data: bytes, owner: object, *, is_raw: bool = False, shown: int = 0) -> None:
        r"""Add `data` of `owner` to the output; never blocks.

        Lines of different owners do not mix: if another owner's last line is incomplete, such as a
        progress bar, `data` starts on a new line. Raw data follows raw data without that.

        Args:
            data: bytes to show unchanged.
            owner: the sink that writes; compared by identity.
            is_raw: whether the data may end inside a line.
            shown: the number of bytes at the beginning of `data` that the console already shows,
                unless another owner has written since.
        """
        with self._changed:
            if self._is_broken or not data:
                return
            if self._owner is owner:
                data = data[shown:]
            elif self._owner is not None and not (is_raw and self._owner_is_raw):
                data = b"\n" + data
            if not data:
                return
            self._owner = None if data.endswith(b"\n") else owner
            self._owner_is_raw = is_raw
            self._append(data)

    def _write(self, data: bytes) -> int:
        try:
            return self._write_to(self._fd, data)
        except BlockingIOError:  # another process that shares the console made it non-blocking
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            poll.poll()
            return 0

    def unshown_lines(self) -> int:
        """The number of lines that are not shown yet, also of `after`."""
        after = self._after
        with self._changed:
            lines = self._chunk.count(b"\n", self._written) + self._backlog.count_lines()
        return lines + (0 if after is None else after.unshown_lines())

    def report_rest(self, files: str = "") -> None:
        """Report the output that is not shown.

        Args:
            files: which log files have it; empty for none.
        """
        if size := self.waiting_bytes:  # 0 if all is shown, but the thread has not ended yet
            # The thread continues to write until this process ends.
            self._warn(
                f"has not taken all of the workers' output; not shown: {size} bytes, "
                f"{self.unshown_lines()} lines" + (f"; {files}" if files else "")
            )

    def report_missing(self) -> None:
        """Report the number of missing lines, if any."""
        if self._backlog.dropped_lines:
            self._warn(
                "was too slow and the disk was full; total lines of the workers' output dropped: "
                f"{self._backlog.dropped_lines}"
            )
        if self._lost_lines:
            self._warn(
                f"could not grow; lines of the workers' output missing there: {self._lost_lines}"
            )


def find_replaced(name: str, fd: int) -> TextIO | None:
    """The object that Python code has assigned to `sys.<name>`; None if that writes to `fd`.

    `contextlib.redirect_stdout`, notebooks and tests replace `sys.stdout`. As in torchrun, the teed
    lines that the launcher shows go to the replacement. What workers write to the console
    themselves goes to the descriptor.

    None as well if `fd` is not the standard stream of that name. Another standard stream does not
    count as a replacement: the command line replaces stdout by stderr, so that nothing is printed
    between the workers' output.
    """
    stream: TextIO | None = getattr(sys, name)
    if stream is None or stream in (sys.__stdout__, sys.__stderr__):
        return None
    if fd != {"stdout": 1, "stderr": 2}[name]:
        return None
    try:
        return None if os.path.sameopenfile(stream.fileno(), fd) else stream
    except (OSError, ValueError, AttributeError):
        return stream  # `stream` has no descriptor, or `fd` is closed


def text_writer(stream: TextIO) -> Callable[[int, bytes], int]:
    """A function that writes bytes to a text stream, with the signature of `os.write`.

    It ignores the descriptor and writes everything, except for an incomplete last character. Each
    exception of the stream becomes an OSError.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(_fd: int, data: bytes) -> int:
        try:
            stream.write(decoder.decode(data))
            with contextlib.suppress(AttributeError):  # only `write` is required
                stream.flush()
        except OSError:
            raise
        except Exception as error:
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error
        return len(data)

    return write
