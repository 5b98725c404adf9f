"""The consoles that show the output of one start, and of starts before it."""

from __future__ import annotations

import math
import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from plaunch_logs_default.streams.console import Console, text_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from plaunch_logs_default.streams.routes import StandardStream
    from plaunch_logs_default.streams.warning_log import WarningLog

_MESSAGE_ORDER_WAIT = 0.1  # seconds; a responsive console shows its backlog before later messages


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
