"""Sends a function worker's return value to the launcher: one frame through one pipe."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import select
import struct
import time
from typing import Any

from plaunch.durations import milliseconds

_HEADER = struct.Struct("!8sQ")
_MAGIC = b"plaunch1"
_CHUNK = 1 << 20
_PATIENCE = 0.005  # seconds without a byte after which a look at the pipe ends


class ResultPipe:
    """The launcher's end of one worker's pipe, and `child_fd`, the end for the worker.

    The worker sends one frame: a header with the length, then the pickled value. So the value is
    complete or not, also if others hold the pipe.
    """

    def __init__(self) -> None:
        self.fd, self.child_fd = os.pipe()
        os.set_blocking(self.fd, False)
        self._data = bytearray()
        self._length: int | None = None
        self._is_over = False

    def receive(self, deadline: float) -> None:
        """Take what has arrived; while a value is coming, also what follows until `deadline`.

        `deadline` is on the monotonic clock.
        """
        while not self.is_over:
            try:
                chunk = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                if not self._data or time.monotonic() >= deadline:
                    return
                poller = select.poll()
                poller.register(self.fd, select.POLLIN)
                if not poller.poll(milliseconds(_PATIENCE)):
                    return
                continue
            if not chunk:
                self._is_over = True
                return
            self._data += chunk
            self._read_header()
            if time.monotonic() >= deadline:
                return

    def receive_rest(self) -> None:
        """Take all that a worker, which has ended, has sent."""
        while not self.is_over:
            before = len(self._data)
            self.receive(deadline=0.0)
            if len(self._data) == before:
                return

    @property
    def is_complete(self) -> bool:
        """Whether the whole value has arrived."""
        return self._length is not None and len(self._data) >= self._length

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come: the value is complete, or the other end is closed."""
        return self._is_over or self.is_complete

    def take_value(self) -> Any:
        """The value; it is unpickled here, so that any exception may come. Call it once."""
        data, self._data = self._data, bytearray()
        return pickle.loads(memoryview(data)[_HEADER.size :])  # noqa: S301 - from our own worker

    def close_child_end(self) -> None:
        """Close the worker's end in the launcher, once the worker has its copy."""
        if self.child_fd >= 0:
            os.close(self.child_fd)
            self.child_fd = -1

    def close(self) -> None:
        """Close both ends; may be called more than once."""
        self.close_child_end()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _read_header(self) -> None:
        if self._length is not None or len(self._data) < _HEADER.size:
            return
        magic, length = _HEADER.unpack_from(self._data)
        if magic != _MAGIC:
            self._is_over = True  # not a frame: somebody else wrote to the worker's descriptor
            return
        self._length = _HEADER.size + length
        if length > _CHUNK:
            # A larger pipe only saves time, and a user has a quota of them.
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, _CHUNK)


def send_result(fd: int, data: bytes) -> None:
    """Send one pickled value; blocks until the launcher has taken it. Runs in the worker."""
    with open(fd, "wb", buffering=0, closefd=False) as pipe:
        for part in (_HEADER.pack(_MAGIC, len(data)), data):
            view = memoryview(part)
            while view:
                view = view[pipe.write(view) :]
