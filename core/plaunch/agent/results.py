"""What is known of how a run goes: what has become of its workers, and who is told of that."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from plaunch.agent.worker import RunResult, WorkerState
from plaunch.errors import RendezvousError, SignalException, UnkillableWorkerError
from plaunch.process.failures.failure import EarlierAttempt, ProcessFailure, first_failure

if TYPE_CHECKING:
    from plaunch.agent.notifications import Notifier
    from plaunch.agent.peers import Peers
    from plaunch.agent.workers import Workers

logger = logging.getLogger("plaunch")

# Seconds that a failure may take to be complete: that others of the same moment and cause are seen,
# and what they last wrote. Then it is told, while the stop goes on.
_SETTLE = 0.1

LAUNCHER = -1  # the "rank" of a failure that is no worker's; its launcher's, in reports


def launcher_failure(text: str, exitcode: int) -> ProcessFailure:
    """A failure of the launcher itself, and not of one of its workers."""
    failure = ProcessFailure(LAUNCHER, os.getpid(), exitcode, "")
    failure.message = text
    failure.error_file_data = {"message": text}
    failure.global_rank = LAUNCHER
    return failure


def describe_cause(result: RunResult) -> str:
    """What failed first, and how, in few words."""
    if not result.failures:
        return "the workers failed"
    rank, failure = first_failure(result.failures)
    return f"rank {rank}, {failure.headline}" if rank >= 0 else failure.headline


class Results:
    """The results of one round after the other, and the error that ends the run, if one does.

    Args:
        workers: whose results these are.
        peers: are told of failures.
        notifier: is told of them as well.
    """

    def __init__(self, workers: Workers, peers: Peers, notifier: Notifier) -> None:
        self.of_workers = RunResult(WorkerState.INIT)
        self.error: BaseException | None = None
        self.no_restart = ""  # why a restart policy wants no other attempt
        self._workers = workers
        self._peers = peers
        self._notifier = notifier
        self._to_mend: RunResult | None = None  # the failure that this round follows
        self._has_started = False  # whether the workers of this round have been
        self._told_at: float | None = None  # on the monotonic clock, of a failure not told yet
        self.earlier: list[EarlierAttempt] = []
        self._attempt: int | None = None  # of the workers that were started last
        self._began = 0.0  # on the monotonic clock, when they were
        self._lasted: float | None = None  # seconds until something ended their work

    def begin_round(self, attempt: int = 0, reason: str = "") -> None:
        """A round has formed, in this attempt; the job says for which `reason`, if it does."""
        if self._attempt is not None and attempt > self._attempt:
            cause = reason.partition("; ")[0] or describe_cause(self.of_workers)
            self.earlier.append(EarlierAttempt(self._attempt, cause, self._lasted or 0.0))
        self.of_workers = RunResult(WorkerState.INIT)
        self._has_started = False

    def begin_work(self, attempt: int = 0) -> None:
        """The workers of the round have been started."""
        self._attempt, self._began, self._lasted = attempt, time.monotonic(), None
        self._has_started = True
        self._to_mend = None  # it is mended

    def end_work(self) -> None:
        """Something ends the round; more may be heard of it."""
        if self._lasted is None:
            self._lasted = time.monotonic() - self._began

    def fail_start(self, error: Exception, *, is_restart: bool, is_wanted: bool) -> None:
        """The workers of the round could not be started; if `is_wanted`, that is said."""
        self.error = error
        if is_restart and self._to_mend is not None:
            # The first failure stays the cause; that it could not be mended is said beside it.
            self.of_workers = self._to_mend
            if is_wanted:
                logger.error(
                    "the workers cannot be started again after a failure, so the job ends: %s",
                    error,
                )

    def fail(self, result: RunResult) -> None:
        """Workers have failed; told in a moment, or at once where no more will be known of it."""
        self.of_workers = result
        self._told_at = time.monotonic() + _SETTLE
        if not self._workers.stop_in_steps():
            self.tell_failure()

    def due(self) -> float | None:
        """Seconds until a failure is to be told, or None."""
        return None if self._told_at is None else max(self._told_at - time.monotonic(), 0.0)

    def tell_failure(self) -> None:
        """Tell of the failure that ended the round, with all that is known of it by now; once."""
        if self._told_at is None:
            return
        self._told_at = None
        self._complete()
        self._notifier.notify_failures(self.of_workers)
        if self._workers.are_of_use():
            self._peers.report_failures(self.of_workers.failures, is_final=self._workers.is_final)

    def end_stop(self) -> None:
        """The workers have been stopped."""
        if self._told_at is not None:
            self.tell_failure()
        elif self.of_workers.is_failed():
            self._complete()

    def tell_error(self, *, is_restart: bool) -> None:
        """Tell the job why this node ends, unless the job would rather go on without it."""
        error = self.error
        if error is None or self._peers.has_verdict():
            return
        if not isinstance(error, (RendezvousError, SignalException, UnkillableWorkerError)):
            before = self._to_mend if is_restart else None
            self._peers.report_error(error, {} if before is None else before.failures)

    def _complete(self) -> None:
        """Have all in the result that is known of the failure by now."""
        # Before the workers of a round are started, all that is there are those of the last one.
        result = self._workers.stopped_result() if self._has_started else None
        if result is not None and result.failures:
            self.of_workers = result
        self._to_mend = self.of_workers
