"""The console, written by its own thread, so that nothing else waits for it."""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import select
import sys
import threading
import time
from typing import TYPE_CHECKING

from plaunch.threads import start_thread

from plaunch_streams.backlog import Backlog

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from plaunch_streams.notices import Notices

SLICE = 64 << 10  # bytes of one write
SLOW_SLICE = 4 << 10  # bytes of one write to a console that makes us wait
SLOW_WRITE = 0.05  # seconds

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Console:
    """One of the launcher's own output streams, shown to a user who may be slow.

    `put` never blocks on the console. What the console cannot take waits in a `Backlog`; when even
    the disk is full the oldest part is dropped, and a line in its place says how many lines it was.
    A console that cannot be written to at all (its reader is gone) is reported once, and everything
    for it is discarded from then on.

    Args:
        fd: the descriptor; it stays open and its flags stay as they are, since others share it.
        label: what messages call it, as in "stdout".
        notices: where trouble is reported.
        backlog: where what is not shown yet waits.
        write: writes to the descriptor, as `os.write` does.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        fd: int,
        label: str,
        notices: Notices,
        *,
        backlog: Backlog | None = None,
        write: Callable[[int, bytes], int] = os.write,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fd = fd
        self._label = label
        self._notices = notices
        self._write = write
        self._clock = clock
        self.is_terminal = os.isatty(fd)
        # When the console took something last, or was first given it, on the clock; 0 before.
        self.last_progress = 0.0
        self._thread: threading.Thread | None = None
        # All below is guarded by this condition, which also wakes the thread.
        self._changed = threading.Condition()
        self._backlog = backlog or Backlog()
        self._in_hand = b""  # the oldest part, which the thread writes
        self._taken = 0  # bytes of it that the console has taken
        self._said_lines = 0  # of those the backlog has dropped, with a line in their place
        self._has_warned = False  # that the backlog drops lines
        self._lost_lines = 0  # refused by a console that is a file on a full disk
        self._owner: object = None  # whose line is unfinished on the console
        self._owner_is_raw = False
        self._at_line_start = True  # of what was written, unlike `_owner`, which is about the queue
        self._is_broken = False
        self._is_closing = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not shown yet; any thread may look, and sees that of a moment ago."""
        return len(self._in_hand) - self._taken + self._backlog.size

    @property
    def missing_lines(self) -> int:
        """Lines that will not be shown: neither the console nor the disk could take them."""
        return self._backlog.dropped_lines + self._lost_lines

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
            self._backlog.append(data)
            self._warn_of_drops()
            self._changed.notify_all()

    def _warn_of_drops(self) -> None:
        if self._backlog.dropped_lines and not self._has_warned:
            self._has_warned = True
            self._warn(
                "does not accept the workers' output fast enough, and no disk space is left to "
                "buffer it: the oldest lines are dropped"
            )

    def start(self) -> None:
        """Start the thread; what was put before is shown now."""
        thread = threading.Thread(
            target=self._run, name=f"plaunch-console-{self._label}", daemon=True
        )
        start_thread(thread)
        self._thread = thread

    def _run(self) -> None:
        size = SLICE
        while data := self._next(size):
            started = self._clock()
            try:
                written = self._write(self._fd, data)
            except BlockingIOError:  # someone who shares the console made it non-blocking
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
                size = SLOW_SLICE
                continue
            except OSError as error:
                self._handle_error(error)
                continue
            with self._changed:
                self._taken += written
                self._at_line_start = data[written - 1 : written] == b"\n"
                self.last_progress = self._clock()
            # Small writes to a slow console, so that `close` can tell slow from stuck.
            size = SLOW_SLICE if self._clock() - started > SLOW_WRITE else SLICE

    def _next(self, size: int) -> bytes:
        """Wait for what is to be written next, `size` bytes at most; empty when all is over."""
        with self._changed:
            while self._taken == len(self._in_hand):
                unsaid = self._backlog.dropped_lines - self._said_lines
                if unsaid:
                    self._said_lines += unsaid
                    self._in_hand = (b"" if self._at_line_start else b"\n") + (
                        b"plaunch: lines missing here: %d "
                        b"(the console was too slow, the disk is full)\n" % unsaid
                    )
                elif self._backlog.size:
                    self._in_hand = self._backlog.take(SLICE)
                    self._warn_of_drops()
                elif self._is_closing:
                    return b""
                else:
                    self._changed.wait()
                    continue
                self._taken = 0
                self.last_progress = self._clock()
            # Others write to this console too (the launcher's log, inherited streams): what they
            # say in between must not land inside a line.
            end = self._taken + size
            if end < len(self._in_hand):
                end = self._in_hand.rfind(b"\n", self._taken, end) + 1 or end
            return self._in_hand[self._taken : end]

    def _handle_error(self, error: OSError) -> None:
        with self._changed:
            lines = self._in_hand.count(b"\n", self._taken) or 1
            self._taken = len(self._in_hand)
            if error.errno in _DISK_FULL:
                if not self._lost_lines:
                    self._warn(
                        f"is a file that cannot grow ({os.strerror(error.errno)}): the workers' "
                        "output is missing there until it can"
                    )
                self._lost_lines += lines
                return
            self._is_broken = True
            self._backlog.clear()
            self._said_lines = self._backlog.dropped_lines
            self._warn(
                f"cannot be written to any more ({error.strerror or error}): the workers' output "
                "for it is discarded from now on; the job goes on"
            )

    def close(self, timeout: float, is_escalated: Callable[[], bool] = lambda: False) -> None:
        """Wait until everything is shown, and end the thread.

        Waits as long as the console takes something at least every `timeout` seconds, unless
        `is_escalated` becomes true. What is left then is reported; the thread keeps it and goes on
        trying for as long as this process lives.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        asked = self._clock()
        while self._thread is not None and self._thread.is_alive():
            waited = self._clock() - max(asked, self.last_progress)
            if waited >= timeout or is_escalated():
                self._report_rest()
                return
            self._thread.join(min(timeout - waited, 0.1))  # short turns: an escalation wakes nobody
        if self._backlog.dropped_lines:
            self._warn(
                "was too slow and the disk was full; total lines of the workers' output dropped: "
                f"{self._backlog.dropped_lines}"
            )
        if self._lost_lines:
            self._warn(
                f"could not grow; lines of the workers' output missing there: {self._lost_lines}"
            )

    def _report_rest(self) -> None:
        with self._changed:
            size = self.waiting_bytes
            lines = self._in_hand.count(b"\n", self._taken) + self._backlog.count_lines()
        if size:  # else all was shown, and the thread has not ended yet
            self._warn(
                f"takes no more output; workers' output that is not shown: {size} bytes, {lines} "
                "lines"
            )

    def _warn(self, what: str) -> None:
        self._notices.warn("%s %s", self._label, what)


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
