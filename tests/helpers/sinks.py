"""Sinks for output of a stream."""

from __future__ import annotations

import threading
import time

from plaunch_logs_default.streams.sinks import ByteSink


class Kept(ByteSink):
    """Records output, and can block for some seconds."""

    def __init__(self, hold=None):
        self.data = b""
        self.flushed = threading.Event()
        self.is_closed = False
        self.due = None
        self._hold = hold

    def write(self, data):
        self.data += data
        if self._hold is not None:
            self.due = time.monotonic() + self._hold

    def flush(self):
        self.due = None
        self.flushed.set()

    def close(self):
        self.is_closed = True


class Plain(ByteSink):
    """A sink that calls a function."""

    def __init__(self, write):
        self._function = write

    def write(self, data):
        self._function(data)
