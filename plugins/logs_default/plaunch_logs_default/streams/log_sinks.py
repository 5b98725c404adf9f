"""Sinks of logs specs, each with its own thread; imported if there are any."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

from plaunch_logs_default.streams.backlog import Backlog
from plaunch_logs_default.streams.sinks import ByteSink
from plaunch_logs_default.streams.writer import OutputWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.process import Sink

    from plaunch_logs_default.streams.writer import WarningLog

MEMORY_LIMIT = 1 << 20  # bytes pending for one sink in memory
LIMIT = 64 << 20  # bytes pending for one sink in memory and on disk


class LogSinkWriter(OutputWriter):
    """Passes one stream of one worker to a sink, which may be slow, fail, or hang.

    Args:
        sink: the sink; closed at the end of the stream.
        stream: the stream, such as "stderr of local rank 3".
        log: logs warnings.
        backlog: keeps pending output.
        clock: monotonic seconds.
    """

    kind = "sink"
    too_slow = "the log sink was too slow"
    no_room = f"{LIMIT >> 20} MiB of it wait"
    full = "cannot grow"
    runs_plugin = True

    def __init__(
        self,
        sink: Sink,
        stream: str,
        log: WarningLog,
        *,
        backlog: Backlog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        backlog = backlog or Backlog(MEMORY_LIMIT, limit=LIMIT)
        label = f"the log sink {type(sink).__qualname__} of {stream}"
        super().__init__(label, log, backlog=backlog, clock=clock)
        self._sink = sink
        self._is_closed = False

    def put(self, data: bytes) -> None:
        """Add `data` to the sink's output; never blocks."""
        with self._changed:
            if self._is_broken:
                self._count_lost(data)
            elif data:
                self._append(data)

    def _write(self, data: bytes) -> int:
        _call(self._sink.write, data)
        return len(data)

    def _give_up(self, unwritten: bytes) -> None:
        self._count_lost(unwritten)
        if self._backlog.size:
            self._lost_ends += self._backlog.count_lines()
            self._lost_in_line = False
        super()._give_up(unwritten)

    def _run(self) -> None:
        super()._run()
        try:
            _call(self._sink.close)
        except OSError as error:
            self._warn(f"cannot be closed ({error.strerror or error}): its end may be missing")
        self._is_closed = True

    def close(self, timeout: float, is_escalated: Callable[[], bool] = lambda: False) -> None:
        """Wait until the sink has taken everything and is closed; see `OutputWriter.close`."""
        if self._thread is None:  # the workers were never started
            try:
                self.start()
            except RuntimeError as error:
                self._warn(f"cannot be closed ({error})")
                return
        super().close(timeout, is_escalated)

    def report_rest(self) -> None:
        """Report the output that the sink has not taken, and discard it."""
        with self._changed:
            size = self.waiting_bytes
            self._give_up(
                self._chunk[self._written :]
            )  # frees the backlog: the next workers may fill as much
        if size:
            self._warn(f"does not take the rest of its output: {size} bytes")
        elif not self._is_closed:
            self._warn("has not returned from close; its end may be missing")
        self.report_missing()

    def report_missing(self) -> None:
        """Report the number of missing lines, if any."""
        if self.missing_lines:
            self._warn(f"lacks lines of the workers' output: {self.missing_lines}")


class ToLogSink(ByteSink):
    """Passes a stream to the thread of a sink."""

    def __init__(self, writer: LogSinkWriter) -> None:
        self._writer = writer

    def write(self, data: bytes) -> None:
        """Pass `data` to the thread."""
        self._writer.put(data)


def _call(method: Callable[..., object], *args: object) -> None:
    """Call a plugin's method; turn each exception but an `OSError` with errno into one with EIO."""
    try:
        method(*args)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error
