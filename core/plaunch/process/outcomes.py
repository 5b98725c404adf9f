"""The workers of one start: which run, how the others ended, and which failed by themselves."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from plaunch.numbers import name_ranks
from plaunch.process.components import WorkerExit
from plaunch.process.failure import ProcessFailure
from plaunch.process.streams import is_shown, last_lines
from plaunch.values import Record, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch.process.children import ProcessHandle
    from plaunch.process.components import WorkerInfo, WorkerResults
    from plaunch.process.logs import LogsDest
    from plaunch.process.streams import Streams
    from plaunch.process.watches import OutOfMemoryCounter

_log = logging.getLogger("plaunch")
_SHARED = "/dev/shm"  # noqa: S108 - not a file of plaunch's


@plain_dataclass
class RunProcsResult(Record):
    """How a set of workers ended, by local rank; the first four fields are torchrun's.

    `return_values` has every rank when all succeeded (None for programs) and is empty otherwise.
    `failures` has the ranks that failed by themselves, in the order in which their exits were seen.
    If none did and the workers were closed while they ran, it has those that did not exit with 0.
    `stdouts` and `stderrs` are the paths that streams were redirected to, or empty strings.
    `stopped`, which torchrun lacks, has the exit codes of all other ranks that the context ended
    (-15 for SIGTERM); these are not failures.
    """

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    stopped: dict[int, int] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether there are failures."""
        return bool(self.failures)


_FileState = tuple[int, int, int]  # distinguishes one error file from another at the same path


class WorkerOutcomes:
    """Records the exits of workers, and decides which of them are failures.

    Args:
        name: what the workers are, for the log.
        nprocs: the number of workers.
        dest: where their output goes, and where they report exceptions.
        results: receives what the workers send back.
        worker_info: what is known of the worker with this local rank and pid.
        program: the path or name of the program that they run; empty if it is unknown.
        shared: the folder of shared memory.
    """

    def __init__(
        self,
        name: str,
        nprocs: int,
        dest: LogsDest,
        results: WorkerResults,
        worker_info: Callable[[int, int], WorkerInfo],
        program: str = "",
        shared: str = _SHARED,
    ) -> None:
        self.workers: dict[int, ProcessHandle] = {}
        self.exits: dict[int, WorkerExit] = {}  # in the order seen
        self._name = name
        self._nprocs = nprocs
        self._dest = dest
        self._results = results
        self._worker_info = worker_info
        self._program = program
        self._shared = shared
        self._new: list[int] = []  # the local ranks of exits that `take` has not returned yet
        self._live_at_stop: frozenset[int] = frozenset()
        self._stopped_ranks: frozenset[int] = frozenset()
        self._old_files: dict[int, _FileState | None] = {}
        self._memory: OutOfMemoryCounter | None = None
        self._began = 0.0  # in seconds since the epoch
        self._signals: dict[int, tuple[int, str]] = {}  # by local rank: the last one, and why
        # Workers that end with an exception and have not exited: when, and the last lines then.
        self._raised: dict[int, tuple[float, list[str]]] = {}
        self._failed_live: frozenset[int] = frozenset()  # those that count as failed
        self._is_stopping = False

    def begin(self, memory: OutOfMemoryCounter) -> None:
        """Record the state of the error files before the first worker starts.

        Args:
            memory: notices kills for lack of memory from now on.
        """
        self._memory = memory
        self._began = time.time()
        # A logs spec may use a file again that has the report of an earlier worker.
        self._old_files = {rank: self._find_error_file(rank) for rank in range(self._nprocs)}

    def live(self) -> list[int]:
        """Return the local ranks of the workers without a recorded exit."""
        return [rank for rank in self.workers if rank not in self.exits]

    def are_undisturbed(self) -> bool:
        """Whether no worker has failed, and none is being stopped."""
        has_failed = any(each.failure for each in self.exits.values()) or self._failed_live
        return not (self._is_stopping or has_failed)

    @property
    def failures(self) -> dict[int, ProcessFailure]:
        """The failures among the exits, in the order seen, and those of `fail_raised`."""
        failures = {rank: each.failure for rank, each in self.exits.items() if each.failure}
        for rank in self._failed_live - self.exits.keys():
            failures[rank] = self._failure(rank, 1)
        return failures

    def take(self) -> list[WorkerExit]:
        """Return the exits recorded since the last call, in the order seen."""
        new, self._new = self._new, []
        return [self.exits[rank] for rank in new]

    def begin_stop(self) -> None:
        """Record which workers a stop ends: those that run and have neither failed nor returned."""
        self._is_stopping = True
        live = self.live()
        self._live_at_stop = frozenset(live)
        self._stopped_ranks = frozenset(
            rank
            for rank in live
            if not (self._has_reported(rank) or self._results.has_returned(rank))
        )

    def reported_at(self, local_rank: int) -> float | None:
        """When a running worker wrote its error file, in seconds since the epoch; None if not."""
        state = self._find_error_file(local_rank)
        return None if state in (None, self._old_files.get(local_rank)) else state[1] / 1e9

    def describe_exception(self, local_rank: int, lines: Sequence[str]) -> str | None:
        """Describe the exception of a running worker with the user's line, as in a headline.

        Args:
            local_rank: the worker.
            lines: the last lines of its stderr.

        Returns:
            An empty text if it cannot be parsed; None if it has not ended the program: a thread or
            another process has printed it.
        """
        failure = replace(self._failure(local_rank, 1), last_lines=list(lines))
        if not failure.has_reply:
            from plaunch.process.tracebacks import are_asides  # suspected failures only

            if are_asides(lines):
                return None
        return failure.headline if failure.raised.text else ""

    def note_raised(self, local_rank: int, at: float, lines: Sequence[str]) -> None:
        """Record that a running worker ends with an exception, although it has not exited.

        If it then fails, or a stop ends it, this is its failure. If it exits by itself, its exit
        code counts: with 0, it has succeeded.

        Args:
            local_rank: the worker.
            at: when it raised the exception, in seconds since the epoch.
            lines: the last lines of its stderr then.
        """
        self._raised.setdefault(local_rank, (at, list(lines)))

    def fail_raised(self) -> bool:
        """Count workers of `note_raised` as failed, though they run; return whether there are any.

        A stop ends them.
        """
        self._failed_live = frozenset(rank for rank in self._raised if rank not in self.exits)
        return bool(self._failed_live)

    def name(self, local_ranks: Sequence[int]) -> str:
        """Name workers by their global ranks, as in `ranks 0-1`; by local ones without an agent."""
        found = [self._worker_info(rank, self.workers[rank].pid) for rank in local_ranks]
        if any(worker.global_rank < 0 for worker in found):
            return name_ranks(local_ranks, "local rank")
        return name_ranks([worker.global_rank for worker in found])

    def note_signal(self, local_rank: int, signum: signal.Signals, reason: str) -> None:
        """Record why a signal is sent to a worker, for its failure; nothing without a reason."""
        if reason:
            self._signals[local_rank] = signum, reason

    def note(self, local_rank: int) -> WorkerExit:
        """Record the exit of a worker that has ended."""
        pid, exitcode = self.workers[local_rank].pid, self.workers[local_rank].poll()
        if exitcode is None:
            raise RuntimeError(f"pid {pid} has ended without an exit code")
        stopped = local_rank in self._stopped_ranks
        if exitcode and local_rank in self._live_at_stop and not stopped:
            # The stop only hastened its end: after success, or after it had reported its exception.
            if self._results.has_returned(local_rank):
                stopped = True
            elif exitcode < 0 or local_rank in self._raised:
                exitcode = 1
        if local_rank in self._failed_live:
            exitcode = 1
        worker = self._worker_info(local_rank, pid)
        seen = WorkerExit(worker, exitcode, stopped, timestamp=time.time())
        # An interrupt must not lose the exit: a stop would wait for the worker.
        self.exits[local_rank] = seen
        self._new.append(local_rank)
        problem = "" if stopped else self._results.take(local_rank, exitcode)
        if stopped or not (exitcode or problem):
            return seen
        # The exit code of a failure is never 0, whatever the worker ended with.
        failure = self._failure(local_rank, exitcode or 1)
        if problem:
            failure = replace(failure, message=problem)
        if exitcode == -signal.SIGKILL and self._memory is not None:
            failure = replace(failure, oom_killed=self._memory.has_killed())
        if exitcode == -signal.SIGBUS:
            failure = replace(failure, shared_memory=_find_space(self._shared))
        _log.debug(
            "%s %d (pid %d) failed: %s", self._name, local_rank, pid, failure.describe_exit()
        )
        self.exits[local_rank] = seen = replace(seen, failure=failure)
        return seen

    def fail_stopped(self) -> None:
        """Count workers that were stopped as failed, unless one has failed by itself.

        torchrun does so for workers that were closed before they succeeded. A worker that answered
        the stop with exit code 0 has not failed.
        """
        if self.failures:
            return
        for rank, each in self.exits.items():
            if each.stopped and each.exitcode:
                failure = replace(self._failure(rank, each.exitcode), timestamp=each.timestamp)
                self.exits[rank] = replace(each, failure=failure)

    def all_failures(self) -> dict[int, ProcessFailure]:
        """Return the failures so far, and those of running workers that have reported an exception.

        The latter may have failed first. They are left out as long as no worker has ended by a
        failure.
        """
        failures = self.failures
        for rank in self.live() if failures else ():
            if rank not in self._stopped_ranks and self._has_reported(rank):
                failures[rank] = self._failure(rank, 1)
        return failures

    def stopped(self) -> dict[int, int]:
        """Return the exit codes of workers that were stopped and have not failed, by local rank."""
        return {
            rank: each.exitcode
            for rank, each in self.exits.items()
            if each.stopped and each.failure is None
        }

    def are_successes(self) -> bool:
        """Whether all workers have ended with exit code 0, and none has failed."""
        is_zero = all(each.exitcode == 0 for each in self.exits.values())
        return is_zero and len(self.exits) == self._nprocs and not self.failures

    def result(self, streams: Streams) -> RunProcsResult:
        """Return the result so far; `streams` have the last lines of the output."""
        failures = {
            rank: replace(
                failure,
                last_lines=self._last_lines(streams, rank),
                is_shown=is_shown(streams, rank),
            )
            for rank, failure in self.all_failures().items()
        }
        for rank in failures.keys() & self.exits.keys():
            self.exits[rank] = replace(self.exits[rank], failure=failures[rank])
        stopped = self.stopped()
        are_successes = self.are_successes() and not stopped
        values = self._results.values(self._nprocs) if are_successes else {}
        stdouts, stderrs = dict(self._dest.stdouts), dict(self._dest.stderrs)
        return RunProcsResult(values, failures, stdouts, stderrs, stopped)

    def _last_lines(self, streams: Streams, local_rank: int) -> list[str]:
        """Return the last lines of a worker, or those at its exception: more may have followed."""
        raised = self._raised.get(local_rank)
        return last_lines(streams, local_rank) if raised is None else raised[1]

    def reap(self) -> None:
        """Reap the workers that have ended."""
        for rank in self.exits:
            self.workers[rank].reap()

    def release(self) -> None:
        """Close what belongs to the workers in this process; called once they are gone."""
        with contextlib.ExitStack() as stack:
            for worker in self.workers.values():
                stack.callback(worker.release)

    def _failure(self, local_rank: int, exitcode: int) -> ProcessFailure:
        pid = self.workers[local_rank].pid
        rank = self._worker_info(local_rank, pid).global_rank
        paths = (self._dest.stdouts.get(local_rank), self._dest.stderrs.get(local_rank))
        failure = ProcessFailure(
            local_rank,
            pid,
            exitcode,
            self._dest.error_files.get(local_rank, ""),
            global_rank=rank if rank >= 0 else None,
            program=self._program,
            log_files=[path for path in dict.fromkeys(paths) if path and path != os.devnull],
        )
        if local_rank in self._raised and not failure.has_reply:
            failure = replace(failure, timestamp=self._raised[local_rank][0])
        failure = replace(failure, lifetime=max(failure.timestamp - self._began, 0.0))
        signum, why = self._signals.get(local_rank, (0, ""))
        if not why or failure.has_reply or exitcode not in (-signum, 128 + signum):
            return failure
        return replace(failure, message=f"{failure.exit_sentence()}: {why}", reason=why)

    def _has_reported(self, local_rank: int) -> bool:
        """Whether a running worker has failed: it reported an exception, or sent an invalid result.

        Its interpreter is still exiting. It failed by itself, perhaps before all others.
        """
        return (
            local_rank in self._raised
            or self._results.has_failed(local_rank)
            or self.reported_at(local_rank) is not None
        )

    def _find_error_file(self, local_rank: int) -> _FileState | None:
        path = self._dest.error_files.get(local_rank)
        if not path or path == os.devnull:
            return None
        try:
            status = os.stat(path)
        except OSError:
            return None
        return (status.st_ino, status.st_mtime_ns, status.st_size) if status.st_size else None


def _find_space(folder: str) -> tuple[int, int] | None:
    """Return the free and the total space of a file system, in bytes; None if it has none."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
