"""The timers of an agent's workers: torchrun's `TORCHELASTIC_ENABLE_FILE_TIMER`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.process.failures.failure import ProcessFailure
    from plaunch.timer import FileTimerServer

TORCHELASTIC_ENABLE_FILE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
TORCHELASTIC_TIMER_FILE = "TORCHELASTIC_TIMER_FILE"


class Watchdog:
    """Serves the timers of the workers of one agent, in all rounds, if the variables ask for it."""

    def __init__(self) -> None:
        self._server: FileTimerServer | None = None
        self._path: str | None = None

    def environment(self, run_id: str) -> dict[str, str]:
        """The variables of workers that are about to start; the first call starts the server.

        Raises:
            UsageError: `TORCHELASTIC_TIMER_FILE` cannot be a pipe.
        """
        if self._path is None:
            self._path = os.environ.get(TORCHELASTIC_TIMER_FILE)
            if os.environ.get(TORCHELASTIC_ENABLE_FILE_TIMER) == "1":
                self._path = self._start(self._path, run_id)
        return {} if self._path is None else {TORCHELASTIC_TIMER_FILE: self._path}

    def _start(self, path: str | None, run_id: str) -> str:
        import tempfile  # noqa: PLC0415 - with timers only

        from plaunch.timer import FileTimerServer  # noqa: PLC0415

        if path is None:
            name = f"watchdog_timer_{os.urandom(16).hex()}"
            path = os.path.join(tempfile.gettempdir(), name)
        try:
            self._server = FileTimerServer(path, run_id)
        except OSError as error:
            raise UsageError(
                f"no pipe for the workers' timers can be made at {path!r} "
                f"({TORCHELASTIC_TIMER_FILE}): {error}"
            ) from error
        self._server.start()
        return path

    def alive_time(self) -> int:
        """When the agent was last seen at work, in seconds since the epoch."""
        if self._server is not None:
            return self._server.get_last_progress_time()
        import time  # noqa: PLC0415 - with a health check only

        return int(time.time())

    def explain(self, failures: Mapping[int, ProcessFailure]) -> None:
        """Add to failures of workers that were killed for their timers that this is why."""
        if self._server is None:
            return
        for failure in failures.values():
            reason = self._server.reason(failure.pid)
            if reason is not None and not failure.has_reply:
                failure.message = f"{failure.exit_sentence()}: {reason}"

    def stop(self) -> None:
        """Stop serving; may be called more than once."""
        if self._server is not None:
            self._server.stop()
            self._server = None
