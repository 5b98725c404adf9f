"""The timers of the workers of one launch: torchrun's `TORCHELASTIC_ENABLE_FILE_TIMER`."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from plaunch import hookimpl
from plaunch.agent import Extension, WorkerState
from plaunch.errors import UsageError

from plaunch_torchrun.elastic.timer.server import FileTimerServer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.agent import Control, RunResult
    from plaunch.plugin import PluginContext

TIMER_FILE = "TORCHELASTIC_TIMER_FILE"
_START_WAIT = 60.0  # seconds for the start of all workers, before one is killed without a reason
_START_INTERVAL = 0.05  # seconds between two checks for that


class Timers:
    """The hooks of the workers' timers."""

    def __init__(self) -> None:
        self._path: str | None = None

    @hookimpl
    def plaunch_extensions(self, context: PluginContext) -> list[TimerExtension]:
        """Create the extension, if the option is given."""
        if context.options.get("file_timer") != "1":
            return []
        name = f"watchdog_timer_{os.urandom(16).hex()}"
        self._path = os.environ.get(TIMER_FILE) or os.path.join(tempfile.gettempdir(), name)
        return [TimerExtension(self._path, context.run_id)]

    @hookimpl
    def plaunch_worker_env(self) -> Mapping[str, str]:
        """Set the variable with the path of the pipe."""
        return {} if self._path is None else {TIMER_FILE: self._path}


class TimerExtension(Extension):
    """Runs the timer server during a launch.

    Args:
        path: the path of the pipe to create.
        run_id: the id of the job, for messages.
    """

    def __init__(self, path: str, run_id: str) -> None:
        self._path = path
        self._run_id = run_id
        self._server: FileTimerServer | None = None
        self._is_ending = threading.Event()

    def start(self, control: Control) -> None:
        """Create the pipe, and start the server.

        Raises:
            UsageError: the pipe cannot be created.
        """

        def kill(pid: int, signum: int, reason: str) -> None:
            ranks = self._find_ranks(control, pid)
            if ranks:
                control.signal_workers(signum, ranks, reason)
            else:  # a child process of a worker
                os.kill(pid, signum)

        try:
            server = FileTimerServer(self._path, self._run_id, kill=kill)
        except OSError as error:
            raise UsageError(
                f"the pipe for workers' timers {self._path!r} ({TIMER_FILE}) cannot be created: "
                f"{error}"
            ) from error
        self._server = server
        server.start()

    def _find_ranks(self, control: Control, pid: int) -> list[int]:
        """Find the ranks of the worker with this process id: one, or none if it is no worker.

        The agent knows its workers only once all of them are started.
        """
        until = time.monotonic() + _START_WAIT
        while True:
            now = control.snapshot()
            ranks = [rank for rank, known in now.pids.items() if known == pid]
            is_known = bool(ranks) or WorkerState.is_running(now.state)
            if is_known or time.monotonic() >= until or self._is_ending.wait(_START_INTERVAL):
                return ranks

    def stop(self, result: RunResult | None) -> None:
        """Stop the server, and remove the pipe."""
        del result
        self._is_ending.set()
        if self._server is not None:
            self._server.stop()
            self._server = None
