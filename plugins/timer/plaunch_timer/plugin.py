"""The timers of the workers of one launch: torchrun's `TORCHELASTIC_ENABLE_FILE_TIMER`."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from plaunch import hookimpl
from plaunch.errors import UsageError

from plaunch_timer.server import FileTimerServer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.agent import Control, RunResult
    from plaunch.events import Event
    from plaunch.plugin import PluginContext

TIMER_FILE = "TORCHELASTIC_TIMER_FILE"


class Timers:
    """Has the timers of the workers watched, in all rounds of a launch."""

    def __init__(self) -> None:
        self._path: str | None = None

    @hookimpl
    def plaunch_extensions(self, context: PluginContext) -> list[TimerExtension]:
        """Watch the timers, if the option is given."""
        if context.options.get("file_timer") != "1":
            return []
        name = f"watchdog_timer_{os.urandom(16).hex()}"
        self._path = os.environ.get(TIMER_FILE) or os.path.join(tempfile.gettempdir(), name)
        return [TimerExtension(self._path, context.run_id)]

    @hookimpl
    def plaunch_worker_env(self) -> Mapping[str, str]:
        """Tell the workers where the pipe is."""
        return {} if self._path is None else {TIMER_FILE: self._path}


class TimerExtension:
    """Serves the pipe.

    Args:
        path: where the pipe is made.
        run_id: the id of the job, for messages.
    """

    def __init__(self, path: str, run_id: str) -> None:
        self._path = path
        self._run_id = run_id
        self._server: FileTimerServer | None = None

    def start(self, control: Control) -> None:
        """Make the pipe, and begin to watch.

        Raises:
            UsageError: it cannot be made.
        """

        def kill(pid: int, signum: int, reason: str) -> None:
            now = control.snapshot()
            ranks = [rank for rank, known in now.pids.items() if known == pid]
            if ranks:
                control.signal_workers(signum, ranks, reason)
            else:  # a process that a worker has started
                os.kill(pid, signum)

        try:
            server = FileTimerServer(self._path, self._run_id, kill=kill)
        except OSError as error:
            raise UsageError(
                f"no pipe for the workers' timers can be made at {self._path!r} ({TIMER_FILE}): "
                f"{error}"
            ) from error
        self._server = server
        server.start()

    def handle(self, event: Event) -> None:
        """Do nothing: timers need no events."""

    def stop(self, result: RunResult | None) -> None:
        """Remove the pipe."""
        del result
        if self._server is not None:
            self._server.stop()
            self._server = None
