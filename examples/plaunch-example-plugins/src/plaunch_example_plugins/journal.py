"""A lifecycle plugin: tells workers why they were restarted, and writes a journal.

Every worker has the variable LAST_FAILURE: empty at first, then the first failure of the previous
attempt, such as "rank 3: exit code 1" or "rank 0: SIGKILL". A script can react to it, for example
with a smaller batch after SIGKILL. If the variable JOURNAL names a file, the plugin writes a line
to it for each start and restart, and for the end of the job.
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
    """The hooks for one launch."""

    def __init__(self) -> None:
        self._path = os.environ.get(FILE_VARIABLE)
        self._last_failure = ""
        self._running = True

    @hookimpl
    def plaunch_worker_env(self) -> dict[str, str]:
        """Return LAST_FAILURE, which is the same for all workers."""
        return {"LAST_FAILURE": self._last_failure}

    @hookimpl
    def plaunch_workers_started(self, group: GroupInfo) -> None:
        """Write a start, and its cause."""
        self._running = True
        ranks = ", ".join(str(worker.global_rank) for worker in group.workers)
        cause = f" after {self._last_failure}" if self._last_failure else ""
        self._note(group, f"attempt {group.attempt}, round {group.round}: ranks {ranks}{cause}")

    @hookimpl
    def plaunch_worker_exited(self, exit: WorkerExit) -> None:
        """Keep the first failure; later ones are its consequences."""
        if self._running and exit.exitcode != 0 and not exit.stopped:
            self._running = False
            self._last_failure = f"rank {exit.worker.global_rank}: {_in_words(exit.exitcode)}"

    @hookimpl
    def plaunch_agent_finished(self, group: GroupInfo, result: RunResult | None) -> None:
        """Write the end of the job."""
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
    except ValueError:  # real-time signals have no name
        return f"signal {-exitcode}"
