"""The thread that reads what the workers write, so that they never wait."""

from __future__ import annotations

import errno
import os
import selectors
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from plaunch.threads import start_thread

from plaunch_logs_default.streams.descriptors import close_quietly

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from plaunch_logs_default.streams.notices import Notices
    from plaunch_logs_default.streams.sinks import ByteSink

READ_SIZE = 256 << 10  # bytes
QUIET = 0.1  # seconds without data after which a pipe that someone still holds is given up
LINGER = 1.0  # seconds that someone who never stops writing is listened to after the workers' end
INTERVAL = 0.1  # seconds between two looks at a file
_CATCH_UP_PERIOD = 0.0005  # seconds between two looks at how far the reader is


class Source:
    """The read end of one worker's stream, and the sinks of its bytes; closes both."""

    can_be_waited_for = True
    _at_end: int | None = None  # what `read` returns where there is nothing more

    def __init__(self, fd: int, label: str, notices: Notices) -> None:
        self.fd = fd
        self.label = label
        self._sinks: list[ByteSink] = []
        self._notices = notices
        self._passing = threading.Lock()  # held while bytes are between the pipe and the sinks
        self.read_bytes = 0  # so far; any thread may read it
        if fd >= 0:
            os.set_blocking(fd, False)

    def add(self, sink: ByteSink) -> None:
        """Let `sink` have the bytes too; before the first of them is read."""
        self._sinks.append(sink)

    def read(self) -> int | None:
        """Hand what is there to every sink; the number of bytes, None at the end of the stream."""
        with self._passing:
            try:
                data = os.read(self.fd, READ_SIZE)
            except BlockingIOError:
                return 0
            except OSError as error:
                if error.errno != errno.EIO:
                    self._notices.warn("%s cannot be read any more: %s", self.label, error)
                # EIO is how a pseudo-terminal says that nobody has its other side open.
                return None
            if not data:
                return self._at_end
            self._each(lambda sink: sink.write(data))
            self.read_bytes += len(data)
            return len(data)

    def catch_up(self, timeout: float) -> bool:
        """Wait until the sinks have what had been written before; False after `timeout` seconds.

        Called by other threads than the reader's.
        """
        until, target = time.monotonic() + timeout, -1
        while (left := until - time.monotonic()) > 0 and self._passing.acquire(timeout=left):
            try:
                if target < 0:
                    target = self.read_bytes + (self.unread() if self.fd >= 0 else 0)
                if self.fd < 0 or self.read_bytes >= target:
                    return True
            finally:
                self._passing.release()
            time.sleep(min(_CATCH_UP_PERIOD, left))
        return False

    def flush(self, now: float) -> None:
        """Let sinks that hold something back pass it on, if it is time."""
        self._each(lambda sink: sink.flush() if sink.due is not None and sink.due <= now else None)

    @property
    def due(self) -> float | None:
        """When the reader is to come back without being called, in monotonic seconds."""
        return min((due for sink in self._sinks if (due := sink.due) is not None), default=None)

    def unread(self) -> int:
        """How many bytes can be read now."""
        from fcntl import ioctl  # once, at the end
        from termios import FIONREAD

        try:
            return int.from_bytes(ioctl(self.fd, FIONREAD, bytes(4)), "little")
        except OSError:
            return 0  # a terminal whose other side is closed: the next read says so

    def close(self) -> None:
        """Close the sinks and the descriptor."""
        with self._passing:
            self._each(lambda sink: sink.close())
            self._sinks.clear()
            close_quietly(self.fd)
            self.fd = -1

    def _each(self, act: Callable[[ByteSink], None]) -> None:
        for sink in tuple(self._sinks):
            try:
                act(sink)
            except Exception as error:  # noqa: BLE001 - a defect here must not stop the training
                self._sinks.remove(sink)
                self._notices.warn("%s: %s is given up: %r", self.label, type(sink).__name__, error)


class FollowedFile(Source):
    """A file that is read while a worker or another program writes it; it may appear late.

    No notification comes when it grows, so plaunch checks it repeatedly.
    """

    can_be_waited_for = False
    _at_end = 0

    def __init__(self, path: str, notices: Notices) -> None:
        super().__init__(-1, f"log file {path!r}", notices)
        self._path = path
        self._next_look = 0.0

    def read(self) -> int | None:
        """Hand the next piece to every sink; None if it cannot be read, which is reported."""
        self._next_look = time.monotonic() + INTERVAL
        if self.fd < 0:
            try:
                self.fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError:
                return 0
            except OSError as error:
                self._notices.warn("%s cannot be shown: %s", self.label, error.strerror)
                return None
        size = super().read() if self.unread() > 0 else 0
        if size:
            self._next_look = 0.0  # there may be more
        return size

    @property
    def due(self) -> float:
        """When the file is to be looked at again."""
        held = super().due
        return self._next_look if held is None else min(held, self._next_look)

    def unread(self) -> int:
        """The same of a regular file; what is none is not read, as it may have no end."""
        try:
            if self.fd < 0:
                return os.stat(self._path).st_size
            return os.fstat(self.fd).st_size - os.lseek(self.fd, 0, os.SEEK_CUR)
        except OSError:
            return 1  # reading it says why


class Reader:
    """Reads several sources in one thread until all have ended, or until it is told to finish.

    Args:
        sources: what is read; those that cannot be waited for are looked at when they are due.
        shared: sinks of several sources, closed after them.
        report_held: called with the sources that something can still write to after the workers'
            end, just before they are closed: what messages call them, by descriptor.
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
        self._due: dict[Source, float] = {}  # those to come back to, uncalled
        self._reads = 0
        self._selector: selectors.BaseSelector  # from `start` on
        self._wake_read = self._wake_write = -1
        self._thread = threading.Thread(target=self._run, name="plaunch-reader", daemon=True)

    def start(self) -> None:
        """Start the thread, which owns sources and shared sinks from now on.

        Raises:
            OSError: too many descriptors are open.
            RuntimeError: the system gives no more threads.
        """
        with ExitStack() as undo:
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._wake_read, self._wake_write = os.pipe()
            undo.callback(os.close, self._wake_read)
            undo.callback(os.close, self._wake_write)
            start_thread(self._thread, blocks_signals=True)
            undo.pop_all()

    def finish(self, timeout: float) -> bool:
        """Read what is left after the end of all workers, and end the thread.

        Somebody else who still holds a pipe (a process that a worker left behind) is listened to
        until nothing has come for `QUIET` seconds, and is reported. False if the thread has not got
        ahead for `timeout` seconds, which takes a file system that hangs.
        """
        if self._wake_write >= 0:
            # Closing it would not do: a process that a plugin has forked may have a copy.
            os.write(self._wake_write, b"\0")
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
            if source.can_be_waited_for:
                self._selector.register(source.fd, selectors.EVENT_READ, source)
            else:
                self._due[source] = 0.0
        try:
            self._read_until_told()
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

    def _read_until_told(self) -> None:
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
        # All that the workers have written is there; who goes on writing is not waited for.
        for source in tuple(self._sources):
            owed = source.unread()
            while owed > 0 and (size := self._read(source)):
                owed -= size
        started = self._clock()
        while self._selector.get_map() and self._clock() - started <= LINGER:
            ready = self._selector.select(QUIET)
            if not ready:
                return
            for key, _ in ready:
                self._read(key.data)

    def _report_holders(self) -> None:
        held = {one.fd: one.label for one in self._sources if one.can_be_waited_for}
        if held:
            self._report_held(held)

    def _read(self, source: Source) -> int:
        self._reads += 1
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
        if source.can_be_waited_for:
            self._selector.unregister(source.fd)
        self._sources.discard(source)
        self._due.pop(source, None)
        source.close()
