"""Following files that others write: a worker itself, or what a third party's logs spec names.

Their bytes go to the same sinks as those of a pipe. What plaunch redirects itself is read from the
worker's pipe, without polling.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from plaunch.process.streams.reader import Source
from plaunch.threads import start_thread

if TYPE_CHECKING:
    from plaunch.process.streams.notices import Notices
    from plaunch.process.streams.sinks import Sink

INTERVAL = 0.1  # seconds


class Tail:
    """A file that is read as it grows, and the sinks of its bytes; it need not exist yet."""

    def __init__(self, path: str, notices: Notices) -> None:
        self._path = path
        self._notices = notices
        self._sinks: list[Sink] = []
        self._source: Source | None = None
        self._position = 0
        self._is_given_up = False

    def add(self, sink: Sink) -> None:
        """Let `sink` have the bytes; before the first of them is read."""
        self._sinks.append(sink)

    def read(self) -> None:
        """Hand what is new to the sinks."""
        source = None if self._is_given_up else self._source or self._open()
        if source is None:
            return
        # Who goes on writing would otherwise keep this going for ever.
        end = os.fstat(source.fd).st_size
        while self._position < end and not self._is_given_up:
            size = source.read()
            self._position += size or 0
            self._is_given_up = size is None  # which has been reported
        source.flush(time.monotonic())

    def _open(self) -> Source | None:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._is_given_up = True
            self._notices.warn("log file %r cannot be shown: %s", self._path, error.strerror)
            return None
        self._source = source = Source(fd, f"log file {self._path!r}", self._notices)
        for sink in self._sinks:
            source.add(sink)
        return source

    def close(self) -> None:
        """Close the sinks and the file."""
        if self._source is not None:
            self._source.close()


class LogTails:
    """Follows files in one thread until it is stopped."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._tails: list[Tail] = []
        self._finished = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, path: str) -> Tail:
        """Follow the file at `path` as well; before `start`."""
        self._tails.append(Tail(path, self._notices))
        return self._tails[-1]

    def start(self) -> None:
        """Start the thread, if there is anything to follow.

        Raises:
            RuntimeError: the system gives no more threads.
        """
        if self._tails:
            thread = threading.Thread(target=self._run, name="plaunch-tails", daemon=True)
            start_thread(thread)
            self._thread = thread

    def stop(self) -> None:
        """Read the files to their end, after the last write to them, and end the thread.

        A signal handler that raises interrupts it. May be called more than once.
        """
        self._finished.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            # Asked before reading: what was written before the end is then not missed.
            ended = self._finished.wait(INTERVAL)
            for tail in self._tails:
                tail.read()
        for tail in self._tails:
            tail.close()
