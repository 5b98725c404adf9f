"""Sets up a function worker: session, streams, signals, environment."""

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
    """Turns a process into a worker: session, streams, signals, environment.

    The context creates it, and the process calls `apply` before it runs code of the user.

    Args:
        local_rank: the local rank of the worker.
        env: its whole environment; None if the process was started with it.
        stdout: the descriptor for its stdout; None if the process was started with it.
        stderr: the same for stderr.
        guard_fd: the descriptor to register with the launcher's guard; None if the process was
            started with its environment.
        signal_mask: the launcher's signal mask, for a fork of the launcher.
        close_fds: descriptors of the launcher that a fork of it must close.
    """

    local_rank: int
    env: Mapping[str, str] | None = None
    stdout: int | None = None
    stderr: int | None = None
    guard_fd: int | None = None
    signal_mask: frozenset[int] | None = None
    close_fds: tuple[int, ...] = ()

    def apply(self) -> None:
        """Turn this process into the worker; called once."""
        tags = None if self.env is None else self.env.get(JOBS_VARIABLE, "")
        become_worker(self.local_rank, tags=tags, guard_fd=self.guard_fd)
        if self.signal_mask is not None:
            _reset_signals(self.signal_mask)
        _set_stream("stdout", 1, self.stdout)
        _set_stream("stderr", 2, self.stderr)
        for fd in self.close_fds:
            with contextlib.suppress(OSError):  # this worker's own streams are already closed
                os.close(fd)
        if self.env is not None:
            for name in os.environ.keys() - self.env.keys():
                del os.environ[name]
            os.environ.update(self.env)


def _reset_signals(mask: frozenset[int]) -> None:
    """Reset the launcher's signal handlers in a fork of it, as in a new program."""
    signal.set_wakeup_fd(-1)  # otherwise the worker's signals would wake the launcher
    for signum in signal.valid_signals():
        if callable(signal.getsignal(signum)):
            is_sigint = signum == signal.SIGINT
            signal.signal(signum, signal.default_int_handler if is_sigint else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _set_stream(name: str, fd: int, source: int | None) -> None:
    """Move `source` to the descriptor `fd`, and make Python's stream write to it by lines.

    Without a source, Python's stream is kept: a test runner or a notebook may have replaced it.
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
        stream = open(fd, "w", buffering=1, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115 - never closed
        setattr(sys, name, stream)
