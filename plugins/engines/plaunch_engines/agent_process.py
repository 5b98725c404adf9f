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
    ) -> None:
        self.node = node
        self.address = address
        self._unwritten = b""
        stdin, self._stdin = os.pipe()
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        for fd in (self._stdin, self.stdout, self.stderr):
            os.set_blocking(fd, False)
        try:
            self._process = subprocess.Popen(
                command, env=env, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
            )
        except BaseException:
            self._close_fds()
            raise
        finally:
            for fd in (stdin, stdout, stderr):
                os.close(fd)
        self.pid = self._process.pid

    def write(self, data: bytes) -> None:
        """Write to its standard input; what does not fit into the pipe is written by `poll`."""
        self._unwritten += data
        self._flush()

    def poll(self) -> int | None:
        """Return its exit code, 128+n for signal n; None while it runs."""
        self._flush()
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def stop(self) -> None:
        """Kill the process and its group, which closes the agent's standard input."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptors, and so end an agent that is still connected."""
        self._close_fds()

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
