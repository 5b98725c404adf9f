"""A worker that the fork server has forked, as the launcher sees it: a child of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from plaunch_preload.server.messages import receive_answer, send

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

ANSWER = 5.0  # seconds for a process that has nothing else to do
_END = 2.0  # seconds for one that is killed
_LOOK = 0.01  # seconds between two looks whether it has ended


class BecomeError(Exception):
    """A forked process became no worker; it has ended."""


class ForkedProcess:
    """A forked process; it says of itself what `subprocess.Popen` says of a program.

    Args:
        pid: its process id; it is a child of this process, and leads a session once it is a worker.
        channel: the socket on which it waits for what it is to become.
    """

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._channel = channel
        self._lock = threading.Lock()

    def become(self, message: Mapping[str, object], fds: Sequence[int]) -> None:
        """Let it become a worker; see `plaunch_preload.server.worker.become`.

        Raises:
            BecomeError: it did not.
        """
        try:
            with self._channel:
                self._channel.settimeout(ANSWER)
                send(self._channel, message, fds)
                problem = receive_answer(self._channel, ANSWER)["error"]
        except (OSError, ValueError) as error:
            problem = f"it does not answer: {error}"
        if problem:
            self.discard()
            raise BecomeError(f"a forked process (pid {self.pid}) became no worker: {problem}")

    def discard(self) -> None:
        """End it, before it is a worker; may be called more than once."""
        self._channel.close()
        if self.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(_END)

    def poll(self) -> int | None:
        """Its exit code if it has ended, negative for a signal; it is then reaped."""
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit code.

        Raises:
            subprocess.TimeoutExpired: it has not ended within so many seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self._reap(0 if until is None else os.WNOHANG)) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0.0)
            time.sleep(_LOOK)
        return code

    def _reap(self, flags: int) -> int | None:
        with self._lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, flags)
                except ChildProcessError:
                    self.returncode = 0  # somebody else has reaped it, as with `Popen`
                else:
                    if pid == self.pid:
                        self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode
