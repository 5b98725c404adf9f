"""The sinks of logs specs, each on a thread of its own; imported if there are any."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

from plaunch_logs_default.streams.backlog import Backlog
from plaunch_logs_default.streams.sinks import ByteSink
from plaunch_logs_default.streams.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.process import Sink

    from plaunch_logs_default.streams.notices import Notices

MEMORY_LIMIT = 1 << 20  # bytes that wait for one sink in memory
LIMIT = 64 << 20  # bytes that wait for one sink, most of them on the disk


class LogSinkWriter(Writer):
    """What one stream of one worker has for a sink, which may be slow, fail, or never return.

    Args:
        sink: the sink; closed when its stream is over.
        stream: whose it is, as in "stderr of local rank 3".
        notices: where trouble is reported.
        backlog: where what it has not taken yet waits.
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
        notices: Notices,
        *,
        backlog: Backlog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        backlog = backlog or Backlog(MEMORY_LIMIT, limit=LIMIT)
        label = f"the log sink {type(sink).__qualname__} of {stream}"
        super().__init__(label, notices, backlog=backlog, clock=clock)
        self._sink = sink
        self._is_closed = False

    def put(self, data: bytes) -> None:
        """Add `data` to what the sink gets; never blocks."""
        with self._changed:
            if self._is_broken:
                self._lost_lines += data.count(b"\n")
            elif data:
                self._append(data)

    def _write(self, data: bytes) -> int:
        _call(self._sink.write, data)
        return len(data)

    def _give_up(self, lines: int) -> None:
        self._lost_lines += lines + self._backlog.count_lines()
        super()._give_up(lines)

    def _run(self) -> None:
        super()._run()
        try:
            _call(self._sink.close)
        except OSError as error:
            self._warn(f"cannot be closed ({error.strerror or error}): its end may be missing")
        self._is_closed = True

    def close(self, timeout: float, is_escalated: Callable[[], bool] = lambda: False) -> None:
        """Wait until the sink has taken everything and is closed, as for any."""
        if self._thread is None:  # the workers were never started
            try:
                self.start()
            except RuntimeError as error:
                self._warn(f"cannot be closed ({error})")
                return
        super().close(timeout, is_escalated)

    def report_rest(self) -> None:
        """Report what it has not taken, which it does not get any more."""
        with self._changed:
            size = self.waiting_bytes
            lines = self._in_hand.count(b"\n", self._taken)
            # Nothing waits for it any longer: the next workers may write as much.
            self._give_up(lines)
        if size:
            self._warn(f"does not take what is left for it: {size} bytes")
        elif not self._is_closed:
            self._warn("has not returned from close; its end may be missing")
        self.report_missing()

    def report_missing(self) -> None:
        """Report how many lines are missing in it, if any are."""
        if self.missing_lines:
            self._warn(f"lacks lines of the workers' output: {self.missing_lines}")


class ToLogSink(ByteSink):
    """Hands a stream to a sink's thread."""

    def __init__(self, writer: LogSinkWriter) -> None:
        self._writer = writer

    def write(self, data: bytes) -> None:
        """Let the thread have `data`."""
        self._writer.put(data)


def _call(method: Callable[..., object], *args: object) -> None:
    """Call what may raise anything, which becomes an OSError; those of a full disk stay."""
    try:
        method(*args)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error
