"""The thread that reads what the workers write, so that they never wait."""

from __future__ import annotations

import errno
import os
import selectors
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from plaunch.process.streams.descriptors import close_quietly
from plaunch.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch.process.streams.notices import Notices
    from plaunch.process.streams.sinks import Sink
    from plaunch.process.streams.traffic import Traffic

READ_SIZE = 256 << 10  # bytes
QUIET = 0.1  # seconds without data after which a pipe that someone still holds is given up
LINGER = 1.0  # seconds that someone who never stops writing is listened to after the workers' end


class Source:
    """The read end of one worker's stream, and the sinks of its bytes; closes both."""

    def __init__(self, fd: int, label: str, notices: Notices) -> None:
        self.fd = fd
        self._label = label
        self._sinks: list[Sink] = []
        self._notices = notices
        self.owed = 0  # bytes that were still to be read when all workers had ended
        os.set_blocking(fd, False)

    def add(self, sink: Sink) -> None:
        """Let `sink` have the bytes too; before the first of them is read."""
        self._sinks.append(sink)

    def read(self) -> int | None:
        """Hand what is there to every sink; the number of bytes, None at the end of the stream."""
        try:
            data = os.read(self.fd, READ_SIZE)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno != errno.EIO:
                self._notices.warn("%s cannot be read any more: %s", self._label, error)
            # EIO is how a pseudo-terminal says that nobody has its other side open.
            return None
        if not data:
            return None
        self.owed -= len(data)
        self._each(lambda sink: sink.write(data))
        return len(data)

    def flush(self, now: float) -> None:
        """Let sinks that hold something back pass it on, if it is time."""
        self._each(lambda sink: sink.flush() if sink.due is not None and sink.due <= now else None)

    @property
    def due(self) -> float | None:
        """When `flush` should be called, in monotonic seconds."""
        return min((due for sink in self._sinks if (due := sink.due) is not None), default=None)

    def count_owed(self) -> None:
        """Note how much is to be read: after the end of the workers, all that they wrote."""
        from fcntl import ioctl  # noqa: PLC0415 - once, at the end
        from termios import FIONREAD  # noqa: PLC0415

        try:
            self.owed = int.from_bytes(ioctl(self.fd, FIONREAD, bytes(4)), "little")
        except OSError:
            self.owed = 0  # a terminal whose other side is closed: the next read says so

    def close(self) -> None:
        """Close the sinks and the descriptor."""
        self._each(lambda sink: sink.close())
        self._sinks.clear()
        close_quietly(self.fd)

    def _each(self, act: Callable[[Sink], None]) -> None:
        for sink in tuple(self._sinks):
            try:
                act(sink)
            except Exception as error:  # noqa: BLE001 - a defect here must not stop the training
                self._sinks.remove(sink)
                self._notices.warn(
                    "%s: %s is given up: %r", self._label, type(sink).__name__, error
                )


class Reader:
    """Reads several sources in one thread until all have ended, or until it is told to finish."""

    def __init__(
        self,
        sources: Sequence[Source],
        clock: Callable[[], float] = time.monotonic,
        *,
        traffic: Traffic | None = None,
    ) -> None:
        self._sources = set(sources)
        self._traffic = traffic
        self._clock = clock
        self._due: dict[Source, float] = {}  # those whose sinks hold something back
        self._reads = 0
        self._selector: selectors.BaseSelector  # from `start` on
        self._wake_read = self._wake_write = -1
        self._thread = threading.Thread(target=self._run, name="plaunch-reader", daemon=True)

    def start(self) -> None:
        """Start the thread, which owns the sources from now on.

        Raises:
            OSError: too many descriptors are open.
            RuntimeError: the system gives no more threads.
        """
        with ExitStack() as undo:
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._wake_read, self._wake_write = os.pipe()
            undo.callback(os.close, self._wake_read)
            undo.callback(os.close, self._wake_write)
            start_thread(self._thread)
            undo.pop_all()

    def finish(self, timeout: float) -> bool:
        """Read what is left after the end of all workers, and end the thread.

        Somebody else who still holds a pipe (a process that a worker left behind) is listened to
        until nothing has come for `QUIET` seconds. False if the thread has not got ahead for
        `timeout` seconds, which takes a file system that hangs.
        """
        if self._wake_write >= 0:
            os.close(self._wake_write)
            self._wake_write = -1
        seen = -1
        while self._thread.is_alive():
            if self._reads == seen:
                return False
            seen = self._reads
            self._thread.join(timeout)
        return True

    def _run(self) -> None:
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        for source in self._sources:
            self._selector.register(source.fd, selectors.EVENT_READ, source)
        try:
            self._read_until_told()
            self._selector.unregister(self._wake_read)
            self._read_rest()
        finally:
            for source in tuple(self._sources):
                self._end(source)
            self._selector.close()
            os.close(self._wake_read)

    def _read_until_told(self) -> None:
        is_told = False
        while not is_told:
            wait = max(0.0, min(self._due.values()) - self._clock()) if self._due else None
            for key, _ in self._selector.select(wait):
                if key.data is None:
                    is_told = True
                else:
                    self._read(key.data)
            if self._due and not is_told:
                now = self._clock()
                for source in tuple(self._due):
                    source.flush(now)
                    self._note_due(source)

    def _read_rest(self) -> None:
        for source in self._sources:
            source.count_owed()
        started = self._clock()
        while self._sources:
            ready = self._selector.select(QUIET)
            if not ready:
                return
            for key, _ in ready:
                self._read(key.data)
            is_late = self._clock() - started > LINGER
            if is_late and all(source.owed <= 0 for source in self._sources):
                return

    def _read(self, source: Source) -> None:
        self._reads += 1
        size = source.read()
        if size is None:
            self._end(source)
        elif size:
            if self._traffic is not None:
                self._traffic.read_bytes += size
            self._note_due(source)

    def _note_due(self, source: Source) -> None:
        due = source.due
        if due is not None:
            self._due[source] = due
        elif self._due:
            self._due.pop(source, None)

    def _end(self, source: Source) -> None:
        self._selector.unregister(source.fd)
        self._sources.discard(source)
        self._due.pop(source, None)
        source.close()
