"""Sends a function worker's return value to the launcher, as one frame through a pipe."""

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
_READ_PAUSE = 0.005  # seconds without data after which `receive` returns


class ResultPipe:
    """The launcher's end of one worker's pipe, and `child_fd`, the worker's end.

    The worker sends one frame: a header with the length, then the pickled value. So it is known
    whether the value is complete, even if other processes have the pipe open.
    """

    def __init__(self) -> None:
        self.fd, self.child_fd = os.pipe()
        os.set_blocking(self.fd, False)
        self._data = bytearray()
        self._length: int | None = None
        self._is_over = False

    def receive(self, deadline: float) -> None:
        """Read the available data; if a value has begun, continue until `deadline`.

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
                if not poller.poll(milliseconds(_READ_PAUSE)):
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
        """Read all that a worker has sent; called after its end."""
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
        """Whether no more data can come: the value is complete, or the other end is closed."""
        return self._is_over or self.is_complete

    def take_value(self) -> Any:
        """Unpickle and return the value, which may raise any exception; called once."""
        data, self._data = self._data, bytearray()
        return pickle.loads(memoryview(data)[_HEADER.size :])  # noqa: S301 - from a worker

    def close_child_end(self) -> None:
        """Close the launcher's copy of the worker's end, once the worker has its own."""
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
            self._is_over = True  # not a frame: other code wrote to the worker's descriptor
            return
        self._length = _HEADER.size + length
        if length > _CHUNK:
            # A larger pipe saves time; the user's quota may not allow it.
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, _CHUNK)


def send_result(fd: int, data: bytes) -> None:
    """Send one pickled value, called in the worker; blocks until the launcher has read it."""
    with open(fd, "wb", buffering=0, closefd=False) as pipe:
        for part in (_HEADER.pack(_MAGIC, len(data)), data):
            view = memoryview(part)
            while view:
                view = view[pipe.write(view) :]
