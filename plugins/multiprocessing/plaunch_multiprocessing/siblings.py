"""Makes function workers that have returned wait for each other: launcher's and worker's end."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
from typing import Any

from plaunch.process import DEFAULT_SIGNALS, parse_signals


class SiblingGate:
    """The launcher's end of a pipe on which workers wait for a byte; `child_fd` is their end.

    The byte is never read, so it releases all workers. Closing the pipe would not be enough: other
    processes may have it open.
    """

    def __init__(self) -> None:
        self._is_open = False
        self.child_fd, self.fd = os.pipe()

    def open(self) -> None:
        """Release all workers, also those that wait later."""
        if not self._is_open and self.fd >= 0:
            self._is_open = True
            os.write(self.fd, b"\0")

    def close(self) -> None:
        """Close both ends; may be called more than once."""
        for fd in (self.child_fd, self.fd):
            if fd >= 0:
                os.close(fd)
        self.child_fd = self.fd = -1


class SiblingWait:
    """Makes a worker that has returned wait until all have, one has failed, or they are stopped.

    As in torchrun: a worker that ends early can break others that still communicate with it, for
    instance in torch's threads. The wait ends with a byte from the launcher, with the launcher's
    end, or with a stop signal. From `begin` on, a stop signal only ends the wait, as the worker
    then ends by itself; after the wait, a further signal has its previous effect.

    Must be created before other code registers atexit callbacks.

    Args:
        fd: the worker's end of the gate's pipe.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._previous: dict[int, Any] = {}
        atexit.register(self._ignore_signals)

    def begin(self) -> None:
        """Handle stop signals; called before the launcher gets the return value."""
        self._signal_read, self._signal_write = os.pipe()
        os.set_blocking(self._signal_write, False)
        for signum in parse_signals(DEFAULT_SIGNALS):
            handler = signal.getsignal(signum)
            if handler not in (signal.SIG_IGN, None):  # None: a handler of C code, left alone
                self._previous[signum] = signal.signal(signum, self._end_wait)

    def wait(self) -> None:
        """Wait; called once."""
        poller = select.poll()
        for fd in (self._fd, self._signal_read):
            poller.register(fd, select.POLLIN)
        was_signalled = self._signal_read in dict(poller.poll())
        for signum, handler in self._previous.items():
            is_default = handler in (signal.SIG_DFL, signal.default_int_handler)
            next_handler = self._restore if is_default and not was_signalled else handler
            signal.signal(signum, next_handler)
        for fd in (self._fd, self._signal_read, self._signal_write):
            os.close(fd)

    def _end_wait(self, signum: int, frame: object) -> None:
        # Must not raise: a second signal may arrive anywhere.
        with contextlib.suppress(BlockingIOError):  # the pipe is full, so the wait ends anyway
            os.write(self._signal_write, b"\0")

    def _restore(self, signum: int, frame: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _ignore_signals(self) -> None:
        # At finalization the interpreter resets Python handlers to the default, which would kill.
        for signum in self._previous:
            if signal.getsignal(signum) == self._restore:
                signal.signal(signum, signal.SIG_IGN)
