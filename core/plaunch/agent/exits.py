"""The ends of workers of one round, as others are notified of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch.agent import notifications
from plaunch.agent.worker import WorkerExit, describe_worker
from plaunch.process.failures.failure import describe_early_ends, first_failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.agent.notifications import Notifier
    from plaunch.agent.worker import WorkerGroup
    from plaunch.process.contexts.context import PContext, ProcessExit, RunProcsResult
    from plaunch.process.failures.failure import ProcessFailure
    from plaunch.process.stopping.stop_sequence import StopStep

logger = logging.getLogger("plaunch")


class Exits:
    """Knows which workers have ended, and notifies others of it."""

    def __init__(self, group: WorkerGroup, notifier: Notifier) -> None:
        self.ended: frozenset[int] = frozenset()  # local ranks
        self.succeeded: dict[int, float] = {}  # when, by global rank, in seconds since the epoch
        self._group = group
        self._notifier = notifier
        self._failures: dict[int, ProcessFailure] = {}  # by global rank

    def worker_ended(self, process_exit: ProcessExit, failure: ProcessFailure | None) -> None:
        """A worker has been seen to end, at once."""
        self.ended |= {process_exit.local_rank}
        exited = self._describe(process_exit, failure)
        if process_exit.exitcode == 0 and failure is None and not process_exit.stopped:
            # A new dictionary, since other threads read the old one.
            rank = exited.worker.global_rank
            self.succeeded = {**self.succeeded, rank: process_exit.timestamp}
        self._notifier.notify(notifications.WorkerEnded, exited, process_exit.timestamp)
        if failure is not None:
            self._failures[exited.worker.global_rank] = failure

    def collect(self, context: PContext, result: RunProcsResult | None) -> None:
        """Tell of those that `context` has looked after, with the failures of `result`."""
        for process_exit in context.take_exits():
            self.ended |= {process_exit.local_rank}
            failure = None if result is None else result.failures.get(process_exit.local_rank)
            exited = self._describe(process_exit, failure)
            self._notifier.notify(notifications.WorkerExited, exited)

    def early_ends(self, failures: Mapping[int, ProcessFailure]) -> list[str]:
        """Say which workers had succeeded before the first of these failures; empty if none."""
        if not failures:
            return []
        line = describe_early_ends(self.succeeded, first_failure(failures)[1].timestamp)
        return [line] if line else []

    def stop_stepped(self, step: StopStep) -> None:
        """The stop sequence has taken a step."""
        self._notifier.notify(notifications.Stopping, step)
        if step.step == "waiting" and self._failures and not self._notifier.state.is_job_wide:
            # The report will say so, too, but only when the stop is over.
            rank, first = first_failure(self._failures)
            logger.warning(
                "they are stopped because rank %d (pid %d) %s: %s",
                rank,
                first.pid,
                first.verb,
                first.headline,
            )

    def _describe(self, process_exit: ProcessExit, failure: ProcessFailure | None) -> WorkerExit:
        return WorkerExit(
            worker=describe_worker(self._group.workers[process_exit.local_rank]),
            exitcode=process_exit.exitcode,
            stopped=process_exit.stopped,
            failure=failure,
        )
