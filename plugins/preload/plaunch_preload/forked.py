"""A forked worker, from the side of the launcher, which becomes its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from plaunch_preload.server.messages import receive_answer, send

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping, Sequence

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
ANSWER_TIMEOUT = 5.0  # seconds for an answer of an idle process
_KILL_TIMEOUT = 2.0  # seconds to exit after SIGKILL
_POLL_INTERVAL = 0.01  # seconds between two checks whether it has exited


@contextlib.contextmanager
def inheriting_orphans() -> Iterator[None]:
    """Make this process inherit the orphans among its descendants, if it does not already.

    Raises:
        OSError: the system rejects it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    if before.value:
        yield
        return
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this process cannot inherit orphans")
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class BecomeError(Exception):
    """A forked process could not become a worker; it has ended."""


class ForkedProcess:
    """A forked process, with the interface of `subprocess.Popen`.

    Args:
        pid: its process id. It is a child of this process, and leads a session once it is a worker.
        channel: the socket on which it waits for the message of `become`.
    """

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._channel = channel
        self._lock = threading.Lock()

    def become(self, message: Mapping[str, object], fds: Sequence[int]) -> None:
        """Make it a worker; see `plaunch_preload.server.worker.become`.

        Raises:
            BecomeError: it failed.
        """
        try:
            with self._channel:
                self._channel.settimeout(ANSWER_TIMEOUT)
                send(self._channel, message, fds)
                problem = receive_answer(self._channel, ANSWER_TIMEOUT)["error"]
        except (OSError, ValueError) as error:
            problem = f"it does not answer: {error}"
        if problem:
            self.discard()
            raise BecomeError(
                f"a forked process (pid {self.pid}) could not become a worker: {problem}"
            )

    def discard(self) -> None:
        """Kill it, before it is a worker; may be called more than once."""
        self._channel.close()
        if self.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(_KILL_TIMEOUT)

    def poll(self) -> int | None:
        """Return its exit code if it has exited, negative for a signal, and reap it."""
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it exits; returns its exit code.

        Raises:
            subprocess.TimeoutExpired: it has not exited within `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self._reap(0 if until is None else os.WNOHANG)) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0.0)
            time.sleep(_POLL_INTERVAL)
        return code

    def _reap(self, flags: int) -> int | None:
        with self._lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, flags)
                except ChildProcessError:
                    self.returncode = 0  # reaped elsewhere; `Popen` does the same
                else:
                    if pid == self.pid:
                        self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode
