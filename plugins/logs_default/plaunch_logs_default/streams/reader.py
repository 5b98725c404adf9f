"""The thread that reads the workers' output, so that they never block on a full pipe."""

from __future__ import annotations

import errno
import os
import selectors
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from plaunch.threads import start_thread

from plaunch_logs_default.streams.routes import close_quietly

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from plaunch_logs_default.streams.sinks import ByteSink
    from plaunch_logs_default.streams.writer import WarningLog

READ_SIZE = 256 << 10  # bytes
# After the workers' end, other processes may have their pipes open. Reading ends after either:
QUIET = 0.1  # seconds without data
LINGER = 1.0  # seconds in total
FOLLOW_INTERVAL = 0.1  # seconds between two checks of a followed file
_CATCH_UP_INTERVAL = 0.0005  # seconds between two checks of the reader's progress


class Source:
    """The read end of one worker's stream, and the sinks that get its bytes."""

    is_pollable = True
    _at_end: int | None = None  # the result of `read` at the end of the file

    def __init__(self, fd: int, label: str, log: WarningLog) -> None:
        self.fd = fd
        self.label = label
        self._sinks: list[ByteSink] = []
        self._log = log
        self._in_transit = threading.Lock()  # held while bytes are between the pipe and the sinks
        self.read_bytes = 0  # so far; any thread may read it
        if fd >= 0:
            os.set_blocking(fd, False)

    def add(self, sink: ByteSink) -> None:
        """Add a sink; called before the first `read`."""
        self._sinks.append(sink)

    def read(self) -> int | None:
        """Pass available bytes to every sink; their number, or None at the end of the stream."""
        with self._in_transit:
            try:
                data = os.read(self.fd, READ_SIZE)
            except BlockingIOError:
                return 0
            except OSError as error:
                if error.errno != errno.EIO:
                    self._log.warn("%s cannot be read any more: %s", self.label, error)
                # A pseudo-terminal reports with EIO that no process has its other side open.
                return None
            if not data:
                return self._at_end
            self._each(lambda sink: sink.write(data))
            self.read_bytes += len(data)
            return len(data)

    def catch_up(self, timeout: float) -> bool:
        """Wait until the sinks have what was written before this call; False after `timeout`.

        `timeout` is in seconds. Called on other threads than the reader's.
        """
        until, target = time.monotonic() + timeout, -1
        while (left := until - time.monotonic()) > 0 and self._in_transit.acquire(timeout=left):
            try:
                if target < 0:
                    target = self.read_bytes + (self.unread() if self.fd >= 0 else 0)
                if self.fd < 0 or self.read_bytes >= target:
                    return True
            finally:
                self._in_transit.release()
            time.sleep(min(_CATCH_UP_INTERVAL, left))
        return False

    def flush(self, now: float) -> None:
        """Call `flush` of the sinks for which it is due."""
        self._each(lambda sink: sink.flush() if sink.due is not None and sink.due <= now else None)

    @property
    def due(self) -> float | None:
        """When the reader must call `flush` and `read`, in monotonic seconds; None if never."""
        return min((due for sink in self._sinks if (due := sink.due) is not None), default=None)

    def unread(self) -> int:
        """The number of bytes that can be read now."""
        from fcntl import ioctl  # called once, at the end
        from termios import FIONREAD

        try:
            return int.from_bytes(ioctl(self.fd, FIONREAD, bytes(4)), "little")
        except OSError:
            return 0  # a terminal whose other side is closed: the next read reports it

    def close(self) -> None:
        """Close the sinks and the descriptor."""
        with self._in_transit:
            self._each(lambda sink: sink.close())
            self._sinks.clear()
            close_quietly(self.fd)
            self.fd = -1

    def _each(self, call: Callable[[ByteSink], None]) -> None:
        for sink in tuple(self._sinks):
            try:
                call(sink)
            except Exception as error:  # noqa: BLE001 - a bug here must not stop the training
                self._sinks.remove(sink)
                self._log.warn(
                    "%s: %s gets no more output: %r", self.label, type(sink).__name__, error
                )


class FollowedFile(Source):
    """A file that is read while a worker or another program writes it; it may be created late.

    The kernel cannot notify when a file grows, so it is checked every `FOLLOW_INTERVAL` seconds.
    """

    is_pollable = False
    _at_end = 0

    def __init__(self, path: str, log: WarningLog) -> None:
        super().__init__(-1, f"log file {path!r}", log)
        self._path = path
        self._next_check = 0.0

    def read(self) -> int | None:
        """Pass the next piece to every sink; None if the file cannot be read, which is reported."""
        self._next_check = time.monotonic() + FOLLOW_INTERVAL
        if self.fd < 0:
            try:
                self.fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError:
                return 0
            except OSError as error:
                self._log.warn("%s cannot be shown: %s", self.label, error.strerror)
                return None
        size = super().read() if self.unread() > 0 else 0
        if size:
            self._next_check = 0.0  # there may be more
        return size

    @property
    def due(self) -> float:
        """When the file must be checked again."""
        flush_due = super().due
        return self._next_check if flush_due is None else min(flush_due, self._next_check)

    def unread(self) -> int:
        """The number of unread bytes; 0 if the file is not regular, as it may have no end."""
        try:
            if self.fd < 0:
                return os.stat(self._path).st_size
            return os.fstat(self.fd).st_size - os.lseek(self.fd, 0, os.SEEK_CUR)
        except OSError:
            return 1  # `read` reports the error


class Reader:
    """Reads several sources on one thread, until all have ended or `finish` is called.

    Args:
        sources: the sources; those that are not pollable are read when they are due.
        shared: sinks of several sources, closed after them.
        report_held: called before the reader closes sources that other processes may still write
            to, with their labels by descriptor.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        sources: Collection[Source],
        clock: Callable[[], float] = time.monotonic,
        *,
        shared: Collection[ByteSink] = (),
        report_held: Callable[[Mapping[int, str]], None] = lambda held: None,
    ) -> None:
        self._report_held = report_held
        self._sources = set(sources)
        self._shared = shared
        self.read_bytes = 0  # so far; any thread may read it
        self._clock = clock
        self._due: dict[Source, float] = {}  # sources that must be read or flushed at a time
        self.reads = 0  # calls of `Source.read`, which show progress
        self.is_finishing = False
        self._selector: selectors.BaseSelector  # from `start` on
        self._wake_read = self._wake_write = -1
        self.thread = threading.Thread(target=self._run, name="plaunch-reader", daemon=True)

    def start(self) -> None:
        """Start the thread, which owns sources and shared sinks from now on.

        Raises:
            OSError: too many descriptors are open.
            RuntimeError: no more threads can be started.
        """
        with ExitStack() as undo:
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._wake_read, self._wake_write = os.pipe()
            undo.callback(os.close, self._wake_read)
            undo.callback(os.close, self._wake_write)
            start_thread(self.thread, blocks_signals=True)
            undo.pop_all()

    def finish(self, timeout: float) -> bool:
        """Read the rest after the end of all workers, and end the thread.

        If another process has a pipe open (an orphan of a worker), reads until nothing has come for
        `QUIET` seconds, and reports the process. False if the thread makes no progress for
        `timeout` seconds: a file system hangs.
        """
        if not self.is_finishing:
            # Closing it is not enough: a process that a plugin has forked may have a copy.
            os.write(self._wake_write, b"\0")
            os.close(self._wake_write)
            self.is_finishing = True
        seen = -1
        while self.thread.is_alive():
            if self.reads == seen:
                return False
            seen = self.reads
            self.thread.join(timeout)
        return True

    def _run(self) -> None:
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        for source in self._sources:
            if source.is_pollable:
                self._selector.register(source.fd, selectors.EVENT_READ, source)
            else:
                self._due[source] = 0.0
        try:
            self._read_until_finish()
            self._selector.unregister(self._wake_read)
            self._read_rest()
            self._report_holders()
        finally:
            for source in self._sources:
                source.close()
            for sink in self._shared:
                sink.close()
            self._selector.close()
            os.close(self._wake_read)

    def _read_until_finish(self) -> None:
        while True:
            wait = max(0.0, min(self._due.values()) - self._clock()) if self._due else None
            for key, _ in self._selector.select(wait):
                if key.data is None:
                    return
                self._read(key.data)
            if self._due:
                now = self._clock()
                for source in [source for source, due in self._due.items() if due <= now]:
                    source.flush(now)
                    self._read(source)

    def _read_rest(self) -> None:
        # The workers have ended, so all their output can be read now.
        for source in tuple(self._sources):
            left = source.unread()
            while left > 0 and (size := self._read(source)):
                left -= size
        started = self._clock()
        while self._selector.get_map() and self._clock() - started <= LINGER:
            ready = self._selector.select(QUIET)
            if not ready:
                return
            for key, _ in ready:
                self._read(key.data)

    def _report_holders(self) -> None:
        held = {source.fd: source.label for source in self._sources if source.is_pollable}
        if held:
            self._report_held(held)

    def _read(self, source: Source) -> int:
        self.reads += 1
        size = source.read()
        if size is None:
            self._end(source)
        else:
            self.read_bytes += size
            due = source.due
            if due is not None:
                self._due[source] = due
            elif self._due:
                self._due.pop(source, None)
        return size or 0

    def _end(self, source: Source) -> None:
        if source.is_pollable:
            self._selector.unregister(source.fd)
        self._sources.discard(source)
        self._due.pop(source, None)
        source.close()
