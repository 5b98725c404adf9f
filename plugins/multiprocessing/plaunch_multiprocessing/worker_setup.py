"""What a function worker does first: its session, streams, signals, environment."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.process import JOBS_VARIABLE, become_worker

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass
class WorkerSetup:
    """All that makes a process one of the workers: session, streams, signals, environment.

    A context fills it in, and the process calls `apply` before it does anything of the user's.

    Args:
        local_rank: the worker's.
        env: its whole environment, or None if it was started with that.
        stdout: a descriptor that becomes its stdout, unless it was started with that.
        stderr: the same for stderr.
        guard_fd: through which a worker that was not started with its environment makes itself
            known to the launcher's guard.
        signal_mask: for a fork of the launcher: what the launcher's mask was.
        close_fds: the launcher's descriptors that a fork of it must not keep.
    """

    local_rank: int
    env: Mapping[str, str] | None = None
    stdout: int | None = None
    stderr: int | None = None
    guard_fd: int | None = None
    signal_mask: frozenset[int] | None = None
    close_fds: tuple[int, ...] = ()

    def apply(self) -> None:
        """Become the worker; called once, in the process that is to be it."""
        tags = None if self.env is None else self.env.get(JOBS_VARIABLE, "")
        become_worker(self.local_rank, tags=tags, guard_fd=self.guard_fd)
        if self.signal_mask is not None:
            _forget_signal_handlers(self.signal_mask)
        _take_stream("stdout", 1, self.stdout)
        _take_stream("stderr", 2, self.stderr)
        for fd in self.close_fds:
            with contextlib.suppress(OSError):  # the stream of this very worker is closed already
                os.close(fd)
        if self.env is not None:
            for name in os.environ.keys() - self.env.keys():
                del os.environ[name]
            os.environ.update(self.env)


def _forget_signal_handlers(mask: frozenset[int]) -> None:
    """Handle signals as a new program does: a forked worker has the launcher's handlers."""
    signal.set_wakeup_fd(-1)  # else the launcher would be woken by the worker's signals
    for signum in signal.valid_signals():
        if callable(signal.getsignal(signum)):
            is_sigint = signum == signal.SIGINT
            signal.signal(signum, signal.default_int_handler if is_sigint else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _take_stream(name: str, fd: int, source: int | None) -> None:
    """Make `source` the descriptor `fd`, and let Python's stream of that name write to it by lines.

    Without a source the stream stays what it is: a test runner or a notebook may have put its own
    object in its place.
    """
    if source is not None and source != fd:
        os.dup2(source, fd)
        os.close(source)
    stream = getattr(sys, name)
    try:
        is_own = stream.fileno() == fd
    except (AttributeError, OSError, ValueError):
        is_own = False
    if is_own and hasattr(stream, "reconfigure"):
        stream.reconfigure(line_buffering=True)
    elif source is not None:
        errors = "strict" if name == "stdout" else "backslashreplace"
        stream = open(fd, "w", buffering=1, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115 - for good
        setattr(sys, name, stream)
