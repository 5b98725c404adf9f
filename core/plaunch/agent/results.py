"""The results of workers, and when failures are reported."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from plaunch.agent.messages import describe_failures
from plaunch.agent.worker import LAUNCHER, RunResult, WorkerState, launcher_failure
from plaunch.errors import (
    ExitCode,
    RendezvousError,
    SignalException,
    UnkillableWorkerError,
    WorkerStoreHostError,
)
from plaunch.process.failure import EarlierAttempt, ProcessFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.agent.extensions import Hang
    from plaunch.agent.notifier import Notifier
    from plaunch.agent.peers import Peers
    from plaunch.agent.workers import Workers
    from plaunch.errors import WorkerStoreError

logger = logging.getLogger("plaunch")


# Seconds for a worker to exit after its exception. Its connections close before its exit is seen,
# so its peers fail first, and stopping it would hide that it has failed by itself.
_CAUSE_WAIT = 2.0


class CauseWait:
    """Decides how long a node delays the report of failures that only report a lost peer.

    Other failures are never delayed, nor is one that another node has reported.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: float | None = None

    def begin_round(self) -> None:
        """The workers of another round have been started."""
        self._until = None

    def is_on(self, result: RunResult, *, others: bool) -> bool:
        """Whether to wait for the cause of these failures.

        Args:
            result: of the workers of this node.
            others: whether there are workers, here or on other nodes, that may be the cause.
        """
        failures = result.failures
        if result.state is not WorkerState.FAILED or not failures or not others:
            return False
        if result.early_ends or any(not failure.is_consequence for failure in failures.values()):
            return False
        if self._until is None:
            self._until = self._clock() + _CAUSE_WAIT
        return self._clock() < self._until

    def end(self) -> None:
        """End the wait, for the rest of the round: another cause is known."""
        self._until = self._clock()

    def due(self) -> float | None:
        """Seconds until the wait is over; None if there is none."""
        left = 0.0 if self._until is None else self._until - self._clock()
        return left if left > 0 else None


class ReportedFailures:
    """The failures of one round that are not exits: its workers hang, or the store is lost.

    Args:
        started_at: when the workers started, in seconds since the epoch.
    """

    def __init__(self, started_at: float = 0.0) -> None:
        self.is_final = False  # whether no restart may follow
        self.by_rank: dict[int, ProcessFailure] = {}  # global ranks; LAUNCHER for the store
        self._started_at = started_at

    def add_hang(self, hang: Hang, local_rank: int, pid: int) -> None:
        """Add a worker that hangs."""
        now = time.time()
        self.is_final = hang.is_final
        self.by_rank[hang.rank] = ProcessFailure(
            local_rank,
            pid,
            ExitCode.HANG,
            "",
            error_file_data={"message": hang.text},
            hung=True,
            global_rank=hang.rank,
            timestamp=now,
            lifetime=max(now - self._started_at, 0.0),
        )

    def add_lost_store(self, error: WorkerStoreError) -> None:
        """Add the loss of the workers' store.

        Raises:
            WorkerStoreHostError: a restart cannot fix it.
        """
        if isinstance(error, WorkerStoreHostError):
            raise error
        self.by_rank[LAUNCHER] = launcher_failure(str(error), ExitCode.CONTROL_PLANE_LOST)

    def merge(self, exits: Mapping[int, ProcessFailure]) -> dict[int, ProcessFailure]:
        """Return these failures, and then those of exits of other workers, by global rank."""
        others = {rank: each for rank, each in exits.items() if rank not in self.by_rank}
        return {**self.by_rank, **others}


class Results:
    """The results of one round after the other, and the error that ends the run, if one does.

    Args:
        workers: whose results these are.
        peers: receive reports of failures.
        notifier: is notified of failures.
    """

    def __init__(self, workers: Workers, peers: Peers, notifier: Notifier) -> None:
        self.of_workers = RunResult(WorkerState.INIT)
        self.error: BaseException | None = None
        self.cause_wait = CauseWait()
        self._workers = workers
        self._peers = peers
        self._notifier = notifier
        self._failed_before: RunResult | None = None  # the failure that led to this round
        self._has_started = False  # whether the workers of this round have been
        self._report_at: float | None = None  # on the monotonic clock, if one is due
        self.earlier: list[EarlierAttempt] = []
        self._attempt: int | None = None  # of the workers that were started last
        self._began = 0.0  # on the monotonic clock, when they were
        self._lasted: float | None = None  # seconds until something ended their work

    def begin_round(self, attempt: int, reason: str) -> None:
        """A round has formed, in this attempt, because of `reason`; empty if the job gave none."""
        if self._attempt is not None and attempt > self._attempt:
            cause = reason or describe_failures(self.of_workers)
            self.earlier.append(EarlierAttempt(self._attempt, cause, self._lasted or 0.0))
        self.of_workers = RunResult(WorkerState.INIT)
        self._has_started = False

    def begin_work(self, attempt: int) -> None:
        """The workers of the round have been started."""
        self._attempt, self._began, self._lasted = attempt, time.monotonic(), None
        self._has_started = True
        self._failed_before = None  # the restart has worked
        self.cause_wait.begin_round()

    def end_work(self) -> None:
        """The work of the round has ended; called for each cause, the first one counts."""
        if self._lasted is None:
            self._lasted = time.monotonic() - self._began

    def note_error(self, error: BaseException | None) -> None:
        """Record why the run ends; the last one counts, and None is ignored."""
        self.error = error or self.error

    def fail_start(self, error: Exception, *, is_restart: bool, is_wanted: bool) -> None:
        """The workers of the round could not be started; logged if it `is_wanted`."""
        self.note_error(error)
        if is_restart and self._failed_before is not None:
            # The first failure stays the cause; that the restart failed is logged beside it.
            self.of_workers = self._failed_before
            if is_wanted:
                logger.error(
                    "the workers cannot be started again after a failure, so the job ends: %s",
                    error,
                )

    def succeed(self, result: RunResult) -> None:
        """All workers have succeeded."""
        self.of_workers = result

    def fail(self, result: RunResult) -> None:
        """Workers have failed; reported in a moment, or now if no more will be known of it."""
        self.of_workers = result
        self._report_at = time.monotonic() + self._workers.settle_time
        if self.due() == 0.0:
            self.report_failure()

    def due(self) -> float | None:
        """Seconds until a failure must be reported, or None."""
        return None if self._report_at is None else max(self._report_at - time.monotonic(), 0.0)

    def report_failure(self) -> None:
        """Report the failure that ended the round, with all that is known of it by now; once."""
        if self._report_at is None:
            return
        self._report_at = None
        self._complete()
        self._notifier.notify_failures(self.of_workers)
        if self._workers.are_of_use():
            self._peers.report_failures(self.of_workers.failures, is_final=self._workers.is_final)

    def end_stop(self) -> None:
        """The workers have been stopped."""
        if self._report_at is not None:
            self.report_failure()
        elif self.of_workers.is_failed():
            self._complete()

    def report_error(self, *, is_restart: bool) -> None:
        """Report to the job why this node ends, unless the job should continue without it."""
        error = self.error
        if error is None or self._peers.has_verdict():
            return
        if not isinstance(error, (RendezvousError, SignalException, UnkillableWorkerError)):
            before = self._failed_before if is_restart else None
            self._peers.report_error(error, {} if before is None else before.failures)

    def _complete(self) -> None:
        """Add to the result what is known of the failure by now."""
        # Until the workers of a round are started, `stopped_result` is that of the last round.
        result = self._workers.stopped_result() if self._has_started else None
        if result is not None and result.failures:
            self.of_workers = result
        self._failed_before = self.of_workers
