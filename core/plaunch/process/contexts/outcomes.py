"""The workers of one start: who runs, how the others have ended, and who failed by itself."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from typing import TYPE_CHECKING

from plaunch._names import class_name
from plaunch.process.contexts.context import ProcessExit, RunProcsResult
from plaunch.process.failures.error_file import one_line
from plaunch.process.failures.failure import ProcessFailure
from plaunch.process.failures.oom import OutOfMemoryWatch
from plaunch.process.streams.api import is_shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.process.contexts.worker_results import WorkerResults
    from plaunch.process.kernel.handle import ProcessHandle
    from plaunch.process.streams.api import Streams

_log = logging.getLogger("plaunch")

_FileState = tuple[int, int, int]  # what tells one error file from another at the same path


class WorkerOutcomes:
    """Keeps the workers, and judges their ends.

    Args:
        name: what the workers are, for the log.
        nprocs: how many there will be.
        error_files: where they report their exceptions, by local rank.
        log_files: the files that the streams of a worker go to.
        results: receives what they send back.
    """

    def __init__(
        self,
        name: str,
        nprocs: int,
        error_files: Mapping[int, str],
        log_files: Callable[[int], list[str]],
        results: WorkerResults,
    ) -> None:
        self.workers: dict[int, ProcessHandle] = {}
        self.seen: dict[int, ProcessExit] = {}
        self.failures: dict[int, ProcessFailure] = {}  # in the order in which they were seen
        self._name = name
        self._nprocs = nprocs
        self._error_files = error_files
        self._log_files = log_files
        self._results = results
        self._untold: list[ProcessExit] = []
        self._told_to_end: frozenset[int] = frozenset()
        self._ended_by_us: frozenset[int] = frozenset()
        self._old_files: dict[int, _FileState | None] = {}
        self._memory: OutOfMemoryWatch | None = None

    def release(self) -> None:
        """Close what belongs to the workers in this process; called once they are gone."""
        with contextlib.ExitStack() as stack:
            for worker in self.workers.values():
                stack.callback(worker.release)

    def begin(self) -> None:
        """Look at what is there before the first worker is started."""
        self._memory = OutOfMemoryWatch()
        # A logs spec may name the same file again, with what an earlier worker wrote.
        self._old_files = {rank: self._find_error_file(rank) for rank in range(self._nprocs)}

    def live(self) -> list[int]:
        """The local ranks of the workers whose end has not been noted."""
        return [rank for rank in self.workers if rank not in self.seen]

    def take(self) -> list[ProcessExit]:
        """The exits noted since the last call, in the order noted."""
        exits, self._untold = self._untold, []
        return exits

    def begin_stop(self) -> None:
        """All that are alive are going to be told to end."""
        live = self.live()
        self._told_to_end = frozenset(live)
        self._ended_by_us = frozenset(
            rank
            for rank in live
            if not (self._has_reported(rank) or self._results.has_returned(rank))
        )

    def note(self, local_rank: int) -> tuple[ProcessExit, ProcessFailure | None]:
        """Note the end of a worker, and what it means: None if that is no failure."""
        pid, exitcode = self.workers[local_rank].pid, self.workers[local_rank].poll()
        if exitcode is None:
            raise RuntimeError(f"pid {pid} has ended without an exit code")
        stopped = local_rank in self._ended_by_us
        if exitcode and local_rank in self._told_to_end and not stopped:
            # Its end was hastened: after success, or after it had reported its exception.
            if self._results.has_returned(local_rank):
                stopped = True
            elif exitcode < 0:
                exitcode = 1
        seen = ProcessExit(local_rank, pid, exitcode, time.time(), stopped)
        self.seen[local_rank] = seen
        self._untold.append(seen)
        problem = "" if stopped else self._results.take(local_rank, exitcode)
        if stopped or not (exitcode or problem):
            return seen, None
        # A failure must not look like a success to anybody.
        failure = self.failures[local_rank] = self._failure(local_rank, exitcode or 1)
        failure.message = problem or failure.message
        if exitcode == -signal.SIGKILL and self._memory is not None:
            failure.oom_killed = self._memory.has_killed()
        _log.debug(
            "%s %d (pid %d) failed: %s", self._name, local_rank, pid, failure.describe_exit()
        )
        return seen, failure

    def fail_stopped(self) -> None:
        """Count workers that were stopped as failed, unless one has failed by itself.

        Torchrun does so for workers that were closed before they succeeded. A worker that answered
        the stop with exit code 0 has not failed.
        """
        if self.failures:
            return
        for rank, seen in self.seen.items():
            if seen.stopped and seen.exitcode:
                self.failures[rank] = failure = self._failure(rank, seen.exitcode)
                failure.timestamp = seen.timestamp

    def all_failures(self) -> dict[int, ProcessFailure]:
        """The failures so far; if there are any, also of workers that have only still to end.

        They have reported an exception, and may have failed first.
        """
        failures = dict(self.failures)
        for rank in self.live() if failures else ():
            if rank not in self._ended_by_us and self._has_reported(rank):
                failures[rank] = self._failure(rank, 1)
        return failures

    def stopped(self) -> dict[int, int]:
        """The exit codes of those that were stopped and have not failed, by local rank."""
        return {
            rank: seen.exitcode
            for rank, seen in self.seen.items()
            if seen.stopped and rank not in self.failures
        }

    def are_successes(self) -> bool:
        """Whether all workers have ended, with exit code 0, and none has failed."""
        is_zero = all(seen.exitcode == 0 for seen in self.seen.values())
        return is_zero and len(self.seen) == self._nprocs and not self.failures

    def result(
        self, streams: Streams | None, stdouts: Mapping[int, str], stderrs: Mapping[int, str]
    ) -> RunProcsResult:
        """What is known by now; `streams` carry the output, which goes to the files given."""
        failures = self.all_failures()
        if streams is not None:
            for rank, failure in failures.items():
                failure.last_lines = _last_lines(streams, rank)
                failure.is_shown = is_shown(streams, rank)
        stopped = self.stopped()
        are_successes = self.are_successes() and not stopped
        values = self._results.values(self._nprocs) if are_successes else {}
        return RunProcsResult(values, failures, dict(stdouts), dict(stderrs), stopped)

    def _failure(self, local_rank: int, exitcode: int) -> ProcessFailure:
        return ProcessFailure(
            local_rank=local_rank,
            pid=self.workers[local_rank].pid,
            exitcode=exitcode,
            error_file=self._error_files.get(local_rank, ""),
            log_files=self._log_files(local_rank),
        )

    def _has_reported(self, local_rank: int) -> bool:
        """Whether a worker that still runs has failed: reported its exception, or sent rubbish.

        Its interpreter then only takes its time to end, and it failed by itself, maybe first.
        """
        return self._results.has_failed(local_rank) or self._find_error_file(local_rank) not in (
            None,
            self._old_files.get(local_rank),
        )

    def _find_error_file(self, local_rank: int) -> _FileState | None:
        path = self._error_files.get(local_rank)
        if not path or path == os.devnull:
            return None
        try:
            status = os.stat(path)
        except OSError:
            return None
        return (status.st_ino, status.st_mtime_ns, status.st_size) if status.st_size else None


def _last_lines(streams: Streams, local_rank: int) -> list[str]:
    """The last lines of a rank; empty if the streams cannot say, which is logged."""
    try:
        return [str(line) for line in streams.last_lines(local_rank)]
    except Exception as error:  # noqa: BLE001 - a plugin's; the result of the job stays
        _log.warning("%s failed in last_lines: %s", class_name(streams), one_line(error))
        return []
