"""The code that runs inside a function worker, from its setup to its return value."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from plaunch.errors import PlaunchError
from plaunch.process import JOBS_VARIABLE, become_worker

from plaunch_multiprocessing.payload import InheritedFd
from plaunch_multiprocessing.return_values import SiblingWait

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch_multiprocessing.payload import Call, PickledCall


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


@dataclass
class Task:
    """The input of one function worker.

    Args:
        setup: turns a process into the worker.
        call: the function and its arguments.
        result: the pipe for the return value.
        siblings: the pipe on which to wait for the other workers after that; None for no wait.
        fds: the descriptors of `setup`, by the names of its fields, if they are sent along.
    """

    setup: WorkerSetup
    call: Call | PickledCall
    result: InheritedFd
    siblings: InheritedFd | None = None
    fds: dict[str, InheritedFd] = field(default_factory=dict)

    def send_fds(self) -> None:
        """Send the descriptors of `setup` along; for a process that is not a fork of this one."""
        fields = {"stdout", "stderr", "guard_fd"}
        found = {name: fd for name, fd in vars(self.setup).items() if name in fields}
        self.fds = {name: InheritedFd(fd) for name, fd in found.items() if fd is not None}

    def run(self) -> None:
        """Set the worker up, call the function, and send its return value."""
        siblings = None if self.siblings is None else SiblingWait(self.siblings.fd)
        fds: dict[str, Any] = {name: fd.fd for name, fd in self.fds.items()}
        replace(self.setup, **fds).apply()
        from plaunch.process import record  # after the streams are set up

        from plaunch_multiprocessing.return_values import send_result

        try:
            data = record(self._call_function)()
        except SystemExit as stop:
            if stop.code is not None:
                raise
            data = None
        except KeyboardInterrupt:
            # A stop, not a failure: no traceback, and the exit code of shells for SIGINT.
            raise SystemExit(128 + signal.SIGINT) from None
        if siblings is not None:
            siblings.begin()
        send_result(self.result.fd, pickle.dumps(None) if data is None else data)
        os.close(self.result.fd)
        _flush_c_streams()
        if siblings is not None:
            siblings.wait()

    def _call_function(self) -> bytes:
        function, args = self.call.load()
        value = function(*args)
        try:
            return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise PlaunchError(
                f"the return value of {function!r} on local rank {self.setup.local_rank}, a "
                f"{type(value).__name__}, cannot be sent to the launcher: {error}. Return a value "
                "that can be pickled, or write it to a file"
            ) from error


def run(task: Task) -> None:
    """The target of multiprocessing's process object."""
    task.run()


def _flush_c_streams() -> None:
    """Flush the streams of C code: a forked worker ends without C's exit handlers."""
    try:
        import ctypes  # only at the end of a worker

        ctypes.CDLL(None).fflush(None)
    except (ImportError, OSError, AttributeError):
        pass  # the C library cannot be called; multiprocessing flushes Python's streams
