"""The store host as the launcher sees it: a process that serves, or has ended, and says why."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plaunch_worker_store import serving
from plaunch.durations import milliseconds
from plaunch.process.failures.failure import describe_exit
from plaunch.process.kernel.pidfd import open_pidfd
from plaunch.process.launcher_variables import inheritable
from plaunch.process.stopping.reaping.job_tag import JOBS_VARIABLE

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

_END_WAIT = 2.0  # seconds for the host to end after SIGKILL
_END_LOOK = 0.02  # seconds between two looks at it where there is no pidfd
_MOST_OUTPUT = 8 << 10  # bytes that are kept of what it says
_LAST_LINES = 5

# What is for the workers alone: whatever makes their torch, their devices or their interpreter
# behave in another way than these usually do.
_DROPPED = ("TORCH", "PYTORCH_", "NCCL_", "GLOO_", "CUDA_", "OMP_", "MKL_", "KMP_", "PLAUNCH_")
_OF_RANKS = ("RANK", "WORLD_SIZE")
# Of Python's own, those that say where modules are.
_PYTHON = "PYTHON"
_PYTHON_KEPT = frozenset(
    ("PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE")
)
_SET = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    # A client that goes away is nothing to write about.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


@dataclass(frozen=True)
class Interpreter:
    """What runs the store host, as it runs the workers.

    Args:
        python: the program.
        env: the environment of a worker.
        folders: where modules are searched; empty for where the interpreter does by itself.
    """

    python: str
    env: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()

    def environment(self, tags: str) -> dict[str, str]:
        """The environment of the host; `tags` are the jobs' that it belongs to (`PLAUNCH_JOBS`)."""
        env = {
            name: value
            for name, value in inheritable(self.env).items()
            if not name.startswith(_DROPPED)
            and not name.endswith(_OF_RANKS)
            and (not name.startswith(_PYTHON) or name in _PYTHON_KEPT)
        }
        return {**env, **_SET, JOBS_VARIABLE: tags}


class StoreHost:
    """A store host that was started; ends with `close`, or with the launcher.

    Args:
        interpreter: what runs it.
        tags: the value of its `PLAUNCH_JOBS`.
        listener: the socket to serve.
        address: where this machine itself reaches that.
        is_lean: whether it loads no more of torch than it needs, which may fail.

    Raises:
        OSError: the system does not start it.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        tags: str,
        listener: socket.socket,
        address: str,
        *,
        is_lean: bool,
    ) -> None:
        self.is_lean = is_lean
        self.is_serving = False
        self.wants_port = False
        self._output = b""
        fd = listener.fileno()
        self._process = subprocess.Popen(
            [
                interpreter.python,
                serving.__file__,
                str(fd),
                address,
                str(listener.getsockname()[1]),
                "lean" if is_lean else "whole",
                *interpreter.folders,
            ],
            env=interpreter.environment(tags),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(fd,),
            bufsize=0,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._pidfd = open_pidfd(self.pid)
        self._pipe = -1
        if self._process.stdout is not None:
            self._pipe = self._process.stdout.fileno()
            os.set_blocking(self._pipe, False)

    def fds(self) -> list[int]:
        """Descriptors that are readable when `look` has something to do."""
        return [fd for fd in (self._pipe, self._pidfd) if fd >= 0]

    def due(self) -> float | None:
        """Seconds until `look` wants to be called whatever happens, or None."""
        return _END_LOOK if self._pipe < 0 and self._pidfd < 0 else None

    def look(self) -> int | None:
        """Take what it says; its exit code if it has ended, negative for a signal."""
        exitcode = self._process.poll()
        self._read()
        return exitcode

    def bind(self) -> None:
        """Let it bind the port, which nobody listens on any more."""
        self.wants_port = False
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has ended, which `look` tells
                self._process.stdin.write(b"\n")

    def describe_end(self) -> str:
        """How it ended, and its last words."""
        how = describe_exit(self._process.returncode or 0)
        lines = [line for line in self._output.decode(errors="replace").splitlines() if line]
        said = "".join(f"\n    {line}" for line in lines[-_LAST_LINES:])
        return f"pid {self.pid}, {how}" + (f"; its last words:{said}" if said else "")

    def close(self) -> None:
        """End it; it leaves no zombie, and takes no more than a moment."""
        if self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel's, sooner or later
                self._wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._pipe = -1
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _wait(self) -> None:
        until = time.monotonic() + _END_WAIT
        if self._pidfd >= 0:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            poller.poll(milliseconds(_END_WAIT))
        self._process.wait(max(until - time.monotonic(), _END_LOOK))

    def _read(self) -> None:
        while self._pipe >= 0:
            try:
                data = os.read(self._pipe, 4096)
            except BlockingIOError:
                break
            if not data:
                self._pipe = -1  # closed with the process
                break
            self._output += data
        for word, name in ((serving.SERVING, "is_serving"), (serving.BINDING, "wants_port")):
            line = f"{word}\n".encode()
            if line in self._output:
                self._output = self._output.replace(line, b"")
                setattr(self, name, True)
        self._output = self._output[-_MOST_OUTPUT:]
