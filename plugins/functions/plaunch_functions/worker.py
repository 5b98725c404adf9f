"""What runs inside a function worker, from its start to its return value."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.errors import PlaunchError
from plaunch_functions.siblings import SiblingWait
from plaunch.process.kernel.processes import find_identity
from plaunch.process.kernel.subreaper import become_subreaper
from plaunch.process.kernel.title import blank_variables, set_title
from plaunch.process.launcher_variables import is_secret
from plaunch.process.stopping.guard.protocol import process_line
from plaunch.process.stopping.reaping.job_tag import JOBS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch_functions.payload import Call, InheritedFd, PickledCall


@dataclass
class Task:
    """All that one function worker is given.

    `env` is its whole environment, or None if it was started with that. `stdout` and `stderr`
    become its streams, unless it was started with those. `siblings` is where it waits, once it has
    sent what it returns, for the others to come as far. `guard_line` is where a worker that was
    not started with its environment makes itself known to the launcher's guard. `signal_mask` and
    `close_fds` are for a forked worker: what the launcher's mask was, and the launcher's
    descriptors that it must not keep.
    """

    local_rank: int
    call: Call | PickledCall
    result: InheritedFd
    env: Mapping[str, str] | None = None
    stdout: InheritedFd | None = None
    stderr: InheritedFd | None = None
    siblings: InheritedFd | None = None
    guard_line: InheritedFd | None = None
    signal_mask: frozenset[int] | None = None
    close_fds: tuple[int, ...] = ()

    def run(self) -> None:
        """Become the worker, call the function, send what it returns."""
        siblings = None if self.siblings is None else SiblingWait(self.siblings.fd)
        self._become_worker()
        from plaunch.process.failures.error_handler import record  # noqa: PLC0415 - the streams are in place now
        from plaunch_functions.results import send_result  # noqa: PLC0415 - as above

        try:
            data = record(self._call_function)()
        except SystemExit as stop:
            if stop.code is not None:
                raise
            data = None
        except KeyboardInterrupt:
            # A stop, not a failure: no traceback. The code is a shell's for SIGINT.
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
                f"the return value of {function!r} on local rank {self.local_rank}, a "
                f"{type(value).__name__}, cannot be sent to the launcher: {error}. Return a value "
                "that can be pickled, or write it to a file"
            ) from error

    def _become_worker(self) -> None:
        if os.getsid(0) != os.getpid():
            os.setsid()
        if self.env is not None:
            tags = self.env.get(JOBS_VARIABLE, "")
            set_title(f"worker {self.local_rank} {tags}", tags, tags.rpartition(":")[2])
            blank_variables(is_secret)
        become_subreaper()  # else nobody would know of its orphans as long as it lives
        if self.guard_line is not None:
            _tell_guard(self.guard_line.fd, self.local_rank)
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


def _tell_guard(line: int, local_rank: int) -> None:
    """Make this process known, for the launcher may be gone by now.

    The guard waits for as long as somebody holds the line, so that a worker lets go of it only when
    it can be found.
    """
    with contextlib.suppress(OSError):  # the guard may be gone, too
        os.write(line, process_line(local_rank, *find_identity(os.getpid())))
    os.close(line)


def run(task: Task) -> None:
    """The target of multiprocessing's process object."""
    task.run()


def _forget_signal_handlers(mask: frozenset[int]) -> None:
    """Handle signals as a new program does: a forked worker has the launcher's handlers."""
    signal.set_wakeup_fd(-1)  # else the launcher would be woken by the worker's signals
    for signum in signal.valid_signals():
        if callable(signal.getsignal(signum)):
            is_sigint = signum == signal.SIGINT
            signal.signal(signum, signal.default_int_handler if is_sigint else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _take_stream(name: str, fd: int, source: InheritedFd | None) -> None:
    """Make `source` the descriptor `fd`, and let Python's stream of that name write to it by lines.

    Without a source the stream stays what it is: a test runner or a notebook may have put its own
    object in its place.
    """
    if source is not None and source.fd != fd:
        os.dup2(source.fd, fd)
        os.close(source.fd)
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


def _flush_c_streams() -> None:
    """Write out what C code has printed: a forked worker ends without C's own clean-up."""
    try:
        import ctypes  # noqa: PLC0415 - at the end of a worker

        ctypes.CDLL(None).fflush(None)
    except (ImportError, OSError, AttributeError):
        pass  # no C library to be reached; Python's own streams are flushed by multiprocessing
