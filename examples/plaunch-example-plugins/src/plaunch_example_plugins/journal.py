"""A lifecycle plugin: workers learn why they were started again, and a file keeps the record.

Every worker has the variable LAST_FAILURE: empty at first, then the first failure of the attempt
before, as in "rank 3: exit code 1" or "rank 0: SIGKILL". A script can answer to it, for example
with a smaller batch after SIGKILL. If the variable JOURNAL names a file, starts, restarts and the
end of the job are written to it as well, one line each.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from plaunch.plugin import hookimpl

if TYPE_CHECKING:
    from plaunch.agent import GroupInfo, RunResult, WorkerExit

FILE_VARIABLE = "JOURNAL"


class Journal:
    """Follows one launch."""

    def __init__(self) -> None:
        self._path = os.environ.get(FILE_VARIABLE)
        self._last_failure = ""
        self._running = True

    @hookimpl
    def plaunch_worker_env(self) -> dict[str, str]:
        """Contribute LAST_FAILURE; the worker and its other variables are not needed for it."""
        return {"LAST_FAILURE": self._last_failure}

    @hookimpl
    def plaunch_workers_started(self, group: GroupInfo) -> None:
        """Note a start, and what made it necessary."""
        self._running = True
        ranks = ", ".join(str(worker.global_rank) for worker in group.workers)
        cause = f" after {self._last_failure}" if self._last_failure else ""
        self._note(group, f"attempt {group.attempt}, round {group.round}: ranks {ranks}{cause}")

    @hookimpl
    def plaunch_worker_exited(self, exit: WorkerExit) -> None:
        """Remember the first worker that fails; what happens to the others follows from it."""
        if self._running and exit.exitcode != 0 and not exit.stopped:
            self._running = False
            self._last_failure = f"rank {exit.worker.global_rank}: {_in_words(exit.exitcode)}"

    @hookimpl
    def plaunch_agent_finished(self, group: GroupInfo, result: RunResult | None) -> None:
        """Note the end."""
        how = "stopped" if result is None else result.state.value.lower()
        self._note(group, f"finished: {how}")

    def _note(self, group: GroupInfo, text: str) -> None:
        if self._path:
            moment = time.strftime("%Y-%m-%dT%H:%M:%S")
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(f"{moment} {group.run_id} {text}\n")


def _in_words(exitcode: int) -> str:
    if exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        return signal.Signals(-exitcode).name
    except ValueError:  # a real-time signal has a number only
        return f"signal {-exitcode}"
