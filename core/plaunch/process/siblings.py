"""Where function workers that have returned wait for each other."""

from __future__ import annotations

import contextlib
import os


class SiblingGate:
    """The launcher's end of a pipe that each worker reads one byte from; `child_fd` is theirs.

    Bytes, and not the pipe's end, let workers go: somebody else may hold that.

    Args:
        count: how many workers there are.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._is_open = False
        self.child_fd, self.fd = os.pipe()
        os.set_blocking(self.fd, False)

    def open(self) -> None:
        """Let all workers go, those that come later as well."""
        if not self._is_open:
            self._is_open = True
            with contextlib.suppress(OSError):  # more workers than a pipe holds: its end, then
                os.write(self.fd, bytes(self._count))

    def close(self) -> None:
        """Release both ends; may be called more than once."""
        for fd in (self.child_fd, self.fd):
            if fd >= 0:
                os.close(fd)
        self.child_fd = self.fd = -1
