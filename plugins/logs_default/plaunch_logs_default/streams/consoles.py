"""The consoles that show the output of one start, and of starts before it."""

from __future__ import annotations

import codecs
import contextlib
import errno
import math
import os
import select
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from plaunch_logs_default.streams.writer import OutputWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import TextIO

    from plaunch_logs_default.streams.backlog import Backlog
    from plaunch_logs_default.streams.routes import StandardStream
    from plaunch_logs_default.streams.writer import WarningLog

_MESSAGE_ORDER_WAIT = 0.1  # seconds; a responsive console shows its backlog before later messages


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
        if self.lost_lines:
            self._warn(
                f"could not grow; lines of the workers' output missing there: {self.lost_lines}"
            )


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


class Consoles:
    """The consoles of one start of a worker group, by `StandardStream.console_key`.

    Args:
        log: logs warnings.
        is_escalated: whether to stop waiting for slow consoles.
        before: the consoles of the previous start; their unshown output comes first.
    """

    def __init__(
        self, log: WarningLog, is_escalated: Callable[[], bool], before: Consoles | None
    ) -> None:
        self._log = log
        self._is_escalated = is_escalated
        self._current: dict[object, Console] = {}
        self._unshown: dict[object, Console] = {}  # with output that `finish` has left
        self._earlier: dict[object, Console] = {}  # of earlier starts, and not in use by this one
        # The log files that also have what a console shows; an empty path stands for no file.
        self._log_files: dict[object, set[str]] = {}
        if before is not None:
            self._earlier = before._find_unshown()
            self._log_files = {key: {*before._log_files[key]} for key in self._earlier}

    def open(self, stream: StandardStream, file: str, *, teed: bool = False) -> Console | None:
        """Open the console of a stream, or get it if it is open; None if nothing can be shown.

        `file` is the log file that gets the same output; empty for none.
        """
        key = stream.console_key(teed=teed)
        if key is None:
            return None
        self._log_files.setdefault(key, set()).add(file)
        if key in self._current:
            return self._current[key]
        after = self._earlier.pop(key, None)
        replaced = stream.replaced
        if replaced is None or not teed:
            console = Console(stream.fd, stream.name, self._log, after=after)
        else:
            name, write = f"sys.{stream.name}", text_writer(replaced)
            console = Console(stream.fd, name, self._log, after=after, write=write)
        self._current[key] = console
        return console

    def shows_all(self, stream: StandardStream, *, teed: bool) -> bool:
        """Whether an open console shows all output of a stream."""
        console = self._current.get(stream.console_key(teed=teed))
        return console is not None and console.is_complete

    def current(self) -> list[Console]:
        """The consoles of this start."""
        return [*self._current.values()]

    def earlier(self) -> list[Console]:
        """Consoles of earlier starts with unshown output, where this start has no console."""
        return [*self._earlier.values()]

    def finish(self, timeout: float, *, leave_rest: bool) -> None:
        """Close all consoles of this start; see `OutputWriter.close`.

        With `leave_rest`, leave what they do not accept at once to `show_rest`.
        """
        with ExitStack() as stack:  # finish all, even if an exception interrupts one
            for key, console in self._current.items():
                if leave_rest:
                    stack.callback(self._leave_rest_of, key, console)
                else:
                    stack.callback(console.close, timeout, self._is_escalated)

    def _leave_rest_of(self, key: object, console: Console) -> None:
        until = time.monotonic() + _MESSAGE_ORDER_WAIT
        if console.wait(lambda: self._is_escalated() or time.monotonic() >= until):
            console.report_missing()
        else:
            self._unshown[key] = console

    def show_rest(self, timeout: float, notice_after: float, log_file: object) -> None:
        """Wait, after `finish`, until the consoles of all starts have shown everything.

        `log_file` is the device and inode of the console that shows the log. For the rest see
        `WorkerStreams.show_rest`.
        """
        began = time.monotonic()

        def is_over() -> bool:
            return self._is_escalated() or time.monotonic() - began >= timeout

        def is_notice_due() -> bool:
            return is_over() or time.monotonic() - began >= notice_after

        try:
            consoles = self._find_unshown()
            for console in consoles.values():
                if not console.wait(is_notice_due):
                    self._report_wait(consoles, timeout, log_file)
                    break
            for key, console in consoles.items():
                if console.wait(is_over):
                    console.report_missing()
                else:
                    console.report_rest(_describe_log_files(self._log_files[key]))
        finally:
            self._unshown, self._earlier = {}, {}

    def _find_unshown(self) -> dict[object, Console]:
        """The consoles that may have unshown output after `finish`."""
        consoles = {**self._earlier, **self._unshown}
        return {key: console for key, console in consoles.items() if console.is_writing()}

    def _report_wait(
        self, consoles: Mapping[object, Console], timeout: float, log_file: object
    ) -> None:
        slow = {key: console for key, console in consoles.items() if console.is_writing()}
        if self._is_escalated() or log_file in slow:
            return
        self._log.warn(
            "waiting for %s, which has not taken %d bytes of the workers' output; the workers have "
            "ended (%s)",
            " and ".join(console.label for console in slow.values()),
            sum(console.waiting_bytes for console in slow.values()),
            "Ctrl-C or SIGTERM ends the wait" if timeout == math.inf else f"at most {timeout:g} s",
        )


def _describe_log_files(files: Collection[str]) -> str:
    """Say where all output of a console is; empty if some of it is in no file."""
    if not all(files):
        return ""
    if len(files) == 1:
        return f"{next(iter(files))!r} has all of it"
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in files])
    return f"the log files in {folder!r} have all of it"
