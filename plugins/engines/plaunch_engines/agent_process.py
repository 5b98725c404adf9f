"""An agent that is reached through a process on this machine: the agent itself, ssh, srun."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

from plaunch_engines.agent_pipes import AgentPipes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class AgentProcess(AgentPipes):
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
        super().__init__(node, address)
        self.pid = 0
        self._command = command
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
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
        stdin, stdout, stderr = self._of_agent
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
            self._close_ends_of_agent()
        self.pid = self._process.pid

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
            self._close_ends_of_agent()
        elif self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
