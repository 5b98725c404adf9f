"""Where function workers that have returned wait for each other."""

from __future__ import annotations

import os


class SiblingGate:
    """The launcher's end of a pipe at which workers wait for a byte; `child_fd` is theirs.

    A byte, which nobody takes out, and not the pipe's end lets them go: somebody else may hold
    that.
    """

    def __init__(self) -> None:
        self._is_open = False
        self.child_fd, self.fd = os.pipe()

    def open(self) -> None:
        """Let all workers go, those that come later as well."""
        if not self._is_open and self.fd >= 0:
            self._is_open = True
            os.write(self.fd, b"\0")

    def close(self) -> None:
        """Release both ends; may be called more than once."""
        for fd in (self.child_fd, self.fd):
            if fd >= 0:
                os.close(fd)
        self.child_fd = self.fd = -1
