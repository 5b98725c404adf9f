"""Writes output and warnings that may block on threads, so that nothing else waits for them."""

from __future__ import annotations

import abc
import errno
import logging
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from plaunch.threads import start_thread

from plaunch_logs_default.streams.backlog import Backlog

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("plaunch")

SLICE = 64 << 10  # bytes of one write
SLOW_SLICE = 4 << 10  # bytes of one write after a slow one
SLOW_WRITE = 0.05  # seconds
_WAIT_INTERVAL = 0.1  # seconds between two calls of `is_over`: an escalation wakes no thread

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class OutputWriter(abc.ABC):
    """Writes output to a target that may be slow, on its own thread.

    Pending output is kept in a `Backlog`. When that is full, the oldest lines are dropped, and a
    line in their place says how many. After a failed write, it logs the error once and discards
    all further output, except if the disk is full: then it continues with the next piece.

    Args:
        label: its name in messages.
        log: logs warnings.
        backlog: keeps pending output.
        clock: monotonic seconds.
    """

    kind: str  # part of the thread's name
    too_slow: str  # why lines are missing, for the line in their place
    no_room: str  # the same for the warning
    full: str  # predicate of the warning that the disk is full
    runs_plugin = False  # whether a plugin writes, whose code may start processes

    def __init__(
        self,
        label: str,
        log: WarningLog,
        *,
        backlog: Backlog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label = label
        self._log = log
        self._clock = clock
        # Clock time of the last successful write, or of the first attempt; 0 before.
        self.last_progress = 0.0
        self._thread: threading.Thread | None = None
        # Guards all attributes below, and wakes the thread.
        self._changed = threading.Condition()
        self._backlog = backlog or Backlog()
        self._chunk = b""  # taken from the backlog, and being written
        self._written = 0  # bytes of `_chunk` that are written
        self._noted_drops = 0  # lines dropped by the backlog that the output mentions
        self._has_warned = False  # that the backlog drops lines
        self._lost_ends = 0  # lines lost in failed writes, without the one that is being lost
        self._lost_in_line = False  # the last lost byte is not a line end
        self._at_line_start = True  # whether the last written byte is a line end
        self._is_broken = False
        self._end_requested_at: float | None = None  # on the clock

    @abc.abstractmethod
    def _write(self, data: bytes) -> int:
        """Write some of `data`; returns the number of bytes, or 0 to be called again.

        Raises:
            OSError: it cannot be written.
        """

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not written yet. Thread-safe; the value may be stale."""
        return len(self._chunk) - self._written + self._backlog.size

    @property
    def missing_lines(self) -> int:
        """Lines that will not be written: dropped by the backlog, or lost in failed writes."""
        return self._backlog.dropped_lines + self.lost_lines

    @property
    def lost_lines(self) -> int:
        """Lines that were lost, as a whole or in part, in failed writes."""
        return self._lost_ends + self._lost_in_line

    def _count_lost(self, data: bytes) -> None:
        """Count the lines of lost output, which may begin or end inside a line; with the lock."""
        self._lost_ends += data.count(b"\n")
        if data:
            self._lost_in_line = not data.endswith(b"\n")

    def _append(self, data: bytes) -> None:
        """Add `data` to the pending output; called with the lock."""
        self._backlog.append(data)
        self._warn_of_drops()
        self._changed.notify_all()

    def _warn_of_drops(self) -> None:
        if self._backlog.dropped_lines and not self._has_warned:
            self._has_warned = True
            self._warn(
                f"does not accept the workers' output fast enough, and {self.no_room}: the oldest "
                "lines are dropped"
            )

    def start(self) -> None:
        """Start the thread, which first writes the output that is already pending.

        Raises:
            ThreadStartError: no more threads can be started.
        """
        name = f"plaunch-{self.kind}-{self.label}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        start_thread(thread, blocks_signals=not self.runs_plugin)
        self._thread = thread

    def _run(self) -> None:
        size = SLICE
        while data := self._next(size):
            started = self._clock()
            try:
                written = self._write(data)
            except OSError as error:
                self._handle_error(error)
                continue
            with self._changed:
                self._written += written
                if written:
                    self._lost_ends, self._lost_in_line = self.lost_lines, False
                    self._at_line_start = data[written - 1 : written] == b"\n"
                    self.last_progress = self._clock()
            # Smaller writes to a slow target, so that `close` sees progress.
            is_slow = not written or self._clock() - started > SLOW_WRITE
            size = SLOW_SLICE if is_slow else SLICE

    def _next(self, size: int) -> bytes:
        """Wait for pending output; at most `size` bytes of it, empty after the last."""
        with self._changed:
            while self._written >= len(self._chunk):
                drops = self._backlog.dropped_lines - self._noted_drops
                if drops and not self._is_broken:
                    self._noted_drops += drops
                    self._chunk = (b"" if self._at_line_start else b"\n") + (
                        b"plaunch: lines missing here: %d (%s)\n" % (drops, self.too_slow.encode())
                    )
                elif self._backlog.size:
                    self._chunk = self._backlog.take(SLICE)
                    self._warn_of_drops()
                elif self._end_requested_at is not None:
                    return b""
                else:
                    self._changed.wait()
                    continue
                self._written = 0
                self.last_progress = self._clock()
            # End at a line end: others (the launcher's log, inherited streams) may write to the
            # same target in between.
            end = self._written + size
            if end < len(self._chunk):
                end = self._chunk.rfind(b"\n", self._written, end) + 1 or end
            return self._chunk[self._written : end]

    def _handle_error(self, error: OSError) -> None:
        with self._changed:
            unwritten = self._chunk[self._written :]
            self._written = len(self._chunk)
            if error.errno in _DISK_FULL:
                if not self.lost_lines:
                    self._warn(
                        f"{self.full} ({os.strerror(error.errno)}): the workers' output is missing "
                        "there until it can"
                    )
                self._count_lost(unwritten)
                return
            self._give_up(unwritten)
            self._warn(
                f"cannot be written to any more ({error.strerror or error}): the workers' output "
                "for it is discarded from now on; the job continues"
            )

    def _give_up(self, unwritten: bytes) -> None:
        """Discard the unwritten rest of `_chunk` and all other output; called with the lock."""
        del unwritten
        self._is_broken = True
        self._backlog.clear()
        self._noted_drops = self._backlog.dropped_lines

    def request_end(self) -> None:
        """Make the thread end when all is written; the timeout of `close` begins now."""
        with self._changed:
            if self._end_requested_at is None:
                self._end_requested_at = self._clock()
            self._changed.notify_all()

    def close(self, timeout: float, is_escalated: Callable[[], bool] = lambda: False) -> None:
        """Wait until everything is written, and end the thread.

        Waits as long as a write succeeds at least every `timeout` seconds and `is_escalated` is
        false. Output that is left then is reported.
        """
        self.request_end()
        requested_at = self._end_requested_at or 0.0

        def is_over() -> bool:
            stalled = self._clock() - max(requested_at, self.last_progress)
            return stalled >= timeout or is_escalated()

        if self.wait(is_over):
            self.report_missing()
        else:
            self.report_rest()

    def wait(self, is_over: Callable[[], bool]) -> bool:
        """Wait, after `request_end`, until everything is written.

        Returns:
            False if `is_over`, which is called repeatedly, returned true before that.
        """
        while self.is_writing():
            if is_over():
                return False
            assert self._thread is not None  # noqa: S101 - is_writing
            self._thread.join(_WAIT_INTERVAL)
        return True

    def is_writing(self) -> bool:
        """Whether the thread runs: output is pending, or may still come."""
        return self._thread is not None and self._thread.is_alive()

    @abc.abstractmethod
    def report_rest(self) -> None:
        """Report the output that is not written."""

    @abc.abstractmethod
    def report_missing(self) -> None:
        """Report the number of missing lines at the end, if any."""

    def _warn(self, predicate: str) -> None:
        self._log.warn("%s %s", self.label, predicate)


class WarningLog:
    """Logs warnings without blocking the caller.

    A log handler usually writes to stderr, which may be the console that is blocked. So each
    warning is logged by a short-lived thread; there are a few per job at most.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._pending: list[Callable[[], None]] = []

    def warn(self, message: str, *args: object) -> None:
        """Log a warning on another thread."""
        write = partial(logger.warning, message, *args)
        thread = threading.Thread(target=write, name="plaunch-warning", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No more threads, or the interpreter is shutting down: `flush` logs it.
            self._pending.append(write)
        else:
            self._threads.append(thread)

    def flush(self, timeout: float) -> None:
        """Wait until all warnings are logged, at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self._threads:
            self._threads.pop().join(max(deadline - time.monotonic(), 0.0))
        while self._pending:
            self._pending.pop(0)()
