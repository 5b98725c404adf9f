"""The code that runs inside a function worker, from its start to its return value."""

from __future__ import annotations

import os
import pickle
import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from plaunch.errors import PlaunchError

from plaunch_multiprocessing.payload import InheritedFd
from plaunch_multiprocessing.siblings import SiblingWait

if TYPE_CHECKING:
    from plaunch_multiprocessing.payload import Call, PickledCall
    from plaunch_multiprocessing.worker_setup import WorkerSetup


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

        from plaunch_multiprocessing.results import send_result

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
