"""An agent that is reached through a process on this machine: the agent itself, ssh, srun."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class AgentProcess:
    """A `plaunch.engines.AgentHandle` of a process that passes on the agent's streams and its end.

    The process leads a session, so that Ctrl-C does not reach it.

    Args:
        node: the name of the node, for messages.
        command: the command of the process.
        address: the address at which the other nodes reach the node; empty to let the agent find
            out.
        env: the environment of the process; by default that of this one.
        begins: whether the process starts now; otherwise `begin` starts it.

    Attributes:
        pid: of the process; 0 before it has been started.

    Raises:
        OSError: the system does not start it.
    """

    def __init__(
        self,
        node: str,
        command: Sequence[str],
        *,
        address: str = "",
        env: Mapping[str, str] | None = None,
        begins: bool = True,
    ) -> None:
        self.node = node
        self.address = address
        self.pid = 0
        self._command = command
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        self._unwritten = b""
        stdin, self._stdin = os.pipe()
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        self._of_process = [stdin, stdout, stderr]
        for fd in (self._stdin, self.stdout, self.stderr):
            os.set_blocking(fd, False)
        if begins:
            try:
                self.begin()
            except BaseException:
                self.close()
                raise

    def begin(self) -> None:
        """Start the process.

        Raises:
            OSError: the system does not start it.
        """
        stdin, stdout, stderr = self._of_process
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        finally:
            self._close_ends_of_process()
        self.pid = self._process.pid

    def write(self, data: bytes) -> None:
        """Write to its standard input; what does not fit into the pipe is written by `poll`."""
        self._unwritten += data
        self._flush()

    def poll(self) -> int | None:
        """Return its exit code, 128+n for signal n; None while it runs."""
        self._flush()
        if self._process is None:
            return 128 + signal.SIGKILL if self._is_stopped else None
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def stop(self) -> None:
        """Kill the process and its group, which closes the agent's standard input."""
        self._is_stopped = True
        if self._process is None:
            self._close_ends_of_process()
        elif self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptors, and so end an agent that is still connected."""
        self._close_ends_of_process()
        self._close_fds()

    def _close_ends_of_process(self) -> None:
        while self._of_process:
            os.close(self._of_process.pop())

    def _flush(self) -> None:
        try:
            while self._unwritten and self._stdin >= 0:
                written = os.write(self._stdin, self._unwritten)
                self._unwritten = self._unwritten[written:]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # it has ended, as `poll` reports
            self._unwritten = b""

    def _close_fds(self) -> None:
        for fd in (self._stdin, self.stdout, self.stderr):
            if fd >= 0:
                os.close(fd)
        self._stdin = self.stdout = self.stderr = -1
