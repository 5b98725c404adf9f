"""The console, written by its own thread, so that nothing else waits for it."""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import select
import sys
import time
from typing import TYPE_CHECKING

from plaunch_logs_default.streams.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from plaunch_logs_default.streams.backlog import Backlog
    from plaunch_logs_default.streams.notices import Notices


class Console(Writer):
    """One of the launcher's own output streams, shown to a user who may be slow.

    `put` never blocks on the console. What the console cannot take waits in a `Backlog`; when even
    the disk is full the oldest part is dropped, and a line in its place says how many lines it was.
    A console that cannot be written to at all (its reader is gone) is reported once, and everything
    for it is discarded from then on.

    Args:
        fd: the descriptor; it stays open and its flags stay as they are, since others share it.
        label: what messages call it, as in "stdout".
        notices: where trouble is reported.
        after: an earlier console on the same descriptor, which writes what it has first.
        backlog: where what is not shown yet waits.
        write: writes to the descriptor, as `os.write` does.
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
        notices: Notices,
        *,
        after: Console | None = None,
        backlog: Backlog | None = None,
        write: Callable[[int, bytes], int] = os.write,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(label, notices, backlog=backlog, clock=clock)
        self._fd = fd
        self._write_to = write
        self._after = after
        self.is_terminal = os.isatty(fd)
        self._owner: object = None  # whose line is unfinished, in what waits
        self._owner_is_raw = False

    @property
    def is_complete(self) -> bool:
        """Whether all that was put has been shown, or will be."""
        return not self._is_broken and not self.missing_lines

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not written yet, also of the one before it; thread-safe, may be stale."""
        after = self._after
        return super().waiting_bytes + (0 if after is None else after.waiting_bytes)

    def _run(self) -> None:
        if self._after is not None:
            self._after.wait(lambda: False)
            self._after = None
        super()._run()

    def put(self, data: bytes, owner: object, *, is_raw: bool = False, shown: int = 0) -> None:
        r"""Add `data` of `owner` to what is shown; never blocks.

        Lines of different owners do not mix: where another owner's line is unfinished (a progress
        bar, say), `data` starts on a new line, except that raw data follows raw data as it comes.

        Args:
            data: bytes to show as they are.
            owner: who writes; compared by identity.
            is_raw: the data is passed on unchanged rather than line by line.
            shown: the first `shown` bytes of `data` are on the console already, unless another
                owner has written since.
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
        except BlockingIOError:  # someone who shares the console made it non-blocking
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            poll.poll()
            return 0

    def unshown_lines(self) -> int:
        """How many lines it has not shown yet, also of the one before it."""
        after = self._after
        with self._changed:
            lines = self._in_hand.count(b"\n", self._taken) + self._backlog.count_lines()
        return lines + (0 if after is None else after.unshown_lines())

    def report_rest(self, files: str = "") -> None:
        """Report what it has not shown.

        Args:
            files: says where the log files are that have it, if there are any.
        """
        if size := self.waiting_bytes:  # else all was shown, and the thread has not ended yet
            # The thread keeps it and continues to write for as long as this process lives.
            self._warn(
                f"has not taken all of the workers' output; not shown: {size} bytes, "
                f"{self.unshown_lines()} lines" + (f"; {files}" if files else "")
            )

    def report_missing(self) -> None:
        """Report how many lines are missing in it, if any are."""
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
    """What Python code has put in the place of `sys.<name>`, unless that writes where `fd` does.

    `contextlib.redirect_stdout`, a notebook and a test put an object there, and a descriptor knows
    nothing of it. What the launcher itself shows of its workers, teed lines, goes to that object,
    as torchrun's does; what workers write themselves goes to the descriptor.

    None as well if `fd` is not the standard stream of that name. And another standard stream is no
    such thing: the command line has stderr in the place of stdout, so that nothing is printed among
    what workers write.
    """
    stream: TextIO | None = getattr(sys, name)
    if stream is None or stream in (sys.__stdout__, sys.__stderr__):
        return None
    if fd != {"stdout": 1, "stderr": 2}[name]:
        return None
    try:
        return None if os.path.sameopenfile(stream.fileno(), fd) else stream
    except (OSError, ValueError, AttributeError):
        return stream  # it has no descriptor, or the process has none


def text_writer(stream: TextIO) -> Callable[[int, bytes], int]:
    """A function that writes bytes to a text stream, in the way of `os.write`.

    The descriptor is not looked at. All is written, but for a character whose end is still to come.
    Whatever the stream raises becomes an OSError.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(_fd: int, data: bytes) -> int:
        try:
            stream.write(decoder.decode(data))
            with contextlib.suppress(AttributeError):  # whatever has `write` will do
                stream.flush()
        except OSError:
            raise
        except Exception as error:
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error
        return len(data)

    return write
