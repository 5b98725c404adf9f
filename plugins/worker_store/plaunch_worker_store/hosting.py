"""The store host, from the side of the launcher: its process, and the interpreter that runs it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plaunch.process import describe_exit, is_python, open_pidfd, wait_for_end
from plaunch.texts import printable

from plaunch_worker_store import serving

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from plaunch.process import Popen

_END_TIMEOUT = 2.0  # seconds for the host to end after SIGKILL
_END_INTERVAL = 0.02  # seconds between two checks where there is no pidfd
_MAX_OUTPUT = 8 << 10  # bytes of its output that are kept
_LAST_LINES = 5

# Variables for the workers only, which change how torch, devices or the interpreter behave.
_DROPPED = ("TORCH", "PYTORCH_", "NCCL_", "GLOO_", "CUDA_", "OMP_", "MKL_", "KMP_", "PLAUNCH_")
_OF_RANKS = ("RANK", "WORLD_SIZE")
# Of Python's variables, only those about the module search path are kept.
_PYTHON = "PYTHON"
_PYTHON_KEPT = frozenset(
    ("PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE")
)
_SET = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    # Disconnected clients are not worth a message.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


class StoreHost:
    """A started store host; ends with `close`, or with the launcher.

    Args:
        interpreter: the interpreter that runs it.
        start: starts it, as `subprocess.Popen` does.
        listener: the socket to serve.
        address: the address at which this machine reaches the socket.
        is_lean: whether it loads only a part of torch, which may fail.
        start_timeout: seconds until it must serve; SIGALRM then ends it.

    Raises:
        OSError: the system does not start it.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        start: Callable[..., Popen],
        listener: socket.socket,
        address: str,
        *,
        is_lean: bool,
        start_timeout: int,
    ) -> None:
        self.is_lean = is_lean
        self.is_serving = False
        self.wants_port = False
        self._output = b""
        fd = listener.fileno()
        stdin, self._stdin = os.pipe()  # the host ends when the second one is closed
        self._pipe, stdout = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            self._process = start(
                [
                    interpreter.python,
                    serving.__file__,
                    str(fd),
                    address,
                    str(listener.getsockname()[1]),
                    "lean" if is_lean else "whole",
                    str(start_timeout),
                    *interpreter.folders,
                ],
                interpreter.environment(),
                stdin=stdin,
                stdout=stdout,
                stderr=stdout,
                pass_fds=(fd,),
            )
        except BaseException:
            self._close_pipes()
            raise
        finally:
            os.close(stdin)
            os.close(stdout)
        self.pid = self._process.pid
        self._pidfd = open_pidfd(self.pid)

    def fds(self) -> list[int]:
        """Descriptors that are readable when `check` has something to do."""
        return [fd for fd in (self._pipe, self._pidfd) if fd >= 0]

    def due(self) -> float | None:
        """Seconds until `check` must be called in any case, or None."""
        return _END_INTERVAL if self._pipe < 0 and self._pidfd < 0 else None

    def check(self) -> int | None:
        """Read its output; return its exit code if it has exited, negative for a signal."""
        exitcode = self._process.poll()
        self._read()
        return exitcode

    def bind(self) -> None:
        """Let it bind the port, after the launcher has closed the listener."""
        self.wants_port = False
        with contextlib.suppress(BrokenPipeError):  # it has exited, as `check` reports
            os.write(self._stdin, b"\n")

    def describe_end(self) -> str:
        """Describe how it ended, with its last output."""
        how = describe_exit(self._process.returncode or 0)
        lines = [line for line in self._output.decode(errors="replace").splitlines() if line]
        output = "".join(f"\n    {printable(line)}" for line in lines[-_LAST_LINES:])
        return f"pid {self.pid}, {how}" + (f"; its last output:{output}" if output else "")

    def close(self) -> None:
        """Kill it and wait for it, for a short time at most."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._wait()
        self._close_pipes()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _wait(self) -> None:
        """Reap it, unless it is stuck in the kernel."""
        until = time.monotonic() + _END_TIMEOUT
        wait_for_end(self._pidfd, _END_TIMEOUT)
        while self._process.poll() is None and time.monotonic() < until:
            time.sleep(_END_INTERVAL)

    def _close_pipes(self) -> None:
        for fd in (self._stdin, self._pipe):
            if fd >= 0:
                os.close(fd)
        self._stdin = self._pipe = -1

    def _read(self) -> None:
        while self._pipe >= 0:
            try:
                data = os.read(self._pipe, 4096)
            except BlockingIOError:
                break
            if not data:
                os.close(self._pipe)
                self._pipe = -1
                break
            self._output += data
        for word, name in ((serving.SERVING, "is_serving"), (serving.BINDING, "wants_port")):
            line = f"{word}\n".encode()
            if line in self._output:
                self._output = self._output.replace(line, b"")
                setattr(self, name, True)
        self._output = self._output[-_MAX_OUTPUT:]


@dataclass(frozen=True)
class Interpreter:
    """The interpreter of the store host and of the workers.

    Args:
        python: the program.
        env: the environment of a worker.
        folders: the module search path; empty for the interpreter's own.
    """

    python: str
    env: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """Return the environment of the host."""
        env = {
            name: value
            for name, value in self.env.items()
            if not name.startswith(_DROPPED)
            and not name.endswith(_OF_RANKS)
            and (not name.startswith(_PYTHON) or name in _PYTHON_KEPT)
        }
        return {**env, **_SET}


def find_interpreter(entrypoint: object, environ: Mapping[str, str]) -> Interpreter:
    """Return the interpreter that runs `entrypoint`; if unknown, the one that runs scripts."""
    if isinstance(entrypoint, str):
        if is_python(entrypoint):
            return Interpreter(entrypoint, environ)
        return Interpreter(os.environ.get("PYTHON_EXEC") or sys.executable, environ)
    from multiprocessing import spawn  # loaded already where functions run

    executable = spawn.get_executable()
    python = os.fsdecode(executable) if executable else sys.executable
    # Processes of multiprocessing search modules where this process does.
    return Interpreter(python, environ, tuple(filter(None, sys.path)))
