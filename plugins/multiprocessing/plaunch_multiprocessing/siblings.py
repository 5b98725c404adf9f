"""Lets function workers that have returned wait for each other: both ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
from typing import Any

from plaunch.process import DEFAULT_SIGNALS, parse_signals


class SiblingGate:
    """The launcher's end of a pipe at which workers wait for a byte; `child_fd` is theirs.

    A byte that stays in the pipe, not the pipe's end, lets them go: others may hold
    that end.
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


class SiblingWait:
    """A worker that is done waits until all have returned, one has failed, or they are stopped.

    As under torchrun: a worker that ends while others still talk to it, in torch's threads maybe,
    takes them down. The launcher writes a byte for all; its end, and a signal to stop, are as good.
    From `begin` on one such signal is only noted, for the worker ends by itself; after the wait the
    next one does what it did before. It is created before anything else can ask to be called at the
    end of the process.

    Args:
        fd: where the byte comes.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._previous: dict[int, Any] = {}
        atexit.register(self._end)

    def begin(self) -> None:
        """Note stop signals; called before the launcher learns that this worker is done."""
        self._heard, self._said = os.pipe()
        os.set_blocking(self._said, False)
        for signum in parse_signals(DEFAULT_SIGNALS):
            handler = signal.getsignal(signum)
            if handler not in (signal.SIG_IGN, None):  # None: C code has it, and keeps it
                self._previous[signum] = signal.signal(signum, self._note)

    def wait(self) -> None:
        """Wait; called once."""
        poller = select.poll()
        for fd in (self._fd, self._heard):
            poller.register(fd, select.POLLIN)
        has_heard = self._heard in dict(poller.poll())
        for signum, handler in self._previous.items():
            is_default = handler in (signal.SIG_DFL, signal.default_int_handler)
            signal.signal(signum, self._put_back if is_default and not has_heard else handler)
        for fd in (self._fd, self._heard, self._said):
            os.close(fd)

    def _note(self, signum: int, frame: object) -> None:
        # It raises nothing: a second signal could do so anywhere.
        with contextlib.suppress(BlockingIOError):  # it has been said often enough
            os.write(self._said, b"\0")

    def _put_back(self, signum: int, frame: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _end(self) -> None:
        # The interpreter sets handlers of its own to the default before it takes itself apart.
        for signum in self._previous:
            if signal.getsignal(signum) == self._put_back:
                signal.signal(signum, signal.SIG_IGN)
