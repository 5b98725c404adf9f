"""The thread that reads what the workers write, so that they never wait."""

from __future__ import annotations

import errno
import os
import selectors
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from plaunch.process.streams.sinks import close_quietly
from plaunch.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch.process.streams.sinks import Outlet
    from plaunch.process.streams.traffic import Traffic
    from plaunch.process.streams.warnings import Notices

READ_SIZE = 256 << 10  # bytes
QUIET = 0.1  # seconds without data after which a pipe that someone still holds is given up
LINGER = 1.0  # seconds that someone who never stops writing is listened to after the workers' end


class Source:
    """The read end of one worker's stream, and the outlets of its bytes; closes both."""

    def __init__(self, fd: int, label: str, notices: Notices) -> None:
        self.fd = fd
        self._label = label
        self._outlets: list[Outlet] = []
        self._notices = notices
        self.owed = 0  # bytes that were still to be read when all workers had ended
        os.set_blocking(fd, False)

    def add(self, outlet: Outlet) -> None:
        """Let `outlet` have the bytes too; before the first of them is read."""
        self._outlets.append(outlet)

    def read(self) -> bytes | None:
        """Read what is there; empty if nothing is, None at the end of the stream."""
        try:
            data = os.read(self.fd, READ_SIZE)
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno != errno.EIO:
                self._notices.warn("%s cannot be read any more: %s", self._label, error)
            # EIO is how a pseudo-terminal says that nobody has its other side open.
            return None
        return data or None

    def feed(self, data: bytes) -> None:
        """Hand `data` to every outlet."""
        self.owed -= len(data)
        self._each(lambda outlet: outlet.write(data))

    def flush(self, now: float) -> None:
        """Let outlets that hold something back pass it on, if it is time."""
        self._each(
            lambda outlet: outlet.flush() if outlet.due is not None and outlet.due <= now else None
        )

    @property
    def due(self) -> float | None:
        """When `flush` should be called, in monotonic seconds."""
        return min((due for o in self._outlets if (due := o.due) is not None), default=None)

    def count_owed(self) -> None:
        """Note how much is to be read: after the end of the workers, all that they wrote."""
        from fcntl import ioctl  # noqa: PLC0415 - once, at the end
        from termios import FIONREAD  # noqa: PLC0415

        try:
            self.owed = int.from_bytes(ioctl(self.fd, FIONREAD, bytes(4)), "little")
        except OSError:
            self.owed = 0  # a terminal whose other side is closed: the next read says so

    def close(self) -> None:
        """Close the outlets and the descriptor."""
        self._each(lambda outlet: outlet.close())
        self._outlets.clear()
        close_quietly(self.fd)

    def _each(self, act: Callable[[Outlet], None]) -> None:
        for outlet in tuple(self._outlets):
            try:
                act(outlet)
            except Exception as error:  # noqa: BLE001 - a defect here must not stop the training
                self._outlets.remove(outlet)
                self._notices.warn(
                    "%s: %s is given up: %r", self._label, type(outlet).__name__, error
                )


class Drain:
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
        self._held: set[Source] = set()
        self._reads = 0
        self._selector: selectors.BaseSelector  # from `start` on
        self._wake_read = self._wake_write = -1
        self._thread = threading.Thread(target=self._run, name="plaunch-drain", daemon=True)

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
        while True:
            dues = [due for source in self._held if (due := source.due) is not None]
            timeout = max(0.0, min(dues) - self._clock()) if dues else None
            is_told = False
            for key, _ in self._selector.select(timeout):
                if key.data is None:
                    is_told = True
                else:
                    self._read(key.data)
            if is_told:
                return
            self._flush_held()

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
        data = source.read()
        if data is None:
            self._end(source)
        elif data:
            if self._traffic is not None:
                self._traffic.read_bytes += len(data)
            source.feed(data)
            if source.due is None:
                self._held.discard(source)
            else:
                self._held.add(source)

    def _flush_held(self) -> None:
        now = self._clock()
        for source in tuple(self._held):
            source.flush(now)
            if source.due is None:
                self._held.discard(source)

    def _end(self, source: Source) -> None:
        self._selector.unregister(source.fd)
        self._sources.discard(source)
        self._held.discard(source)
        source.close()
