"""The ends of workers of one round, as others are notified of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch.agent import notifications
from plaunch.agent.worker import WorkerExit, describe_worker

if TYPE_CHECKING:
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
        self._cause = ""  # which worker failed first, and how

    def note(self, process_exit: ProcessExit, failure: ProcessFailure | None) -> None:
        """A worker has been seen to end, at once."""
        self.ended |= {process_exit.local_rank}
        exited = self._describe(process_exit, failure)
        if process_exit.exitcode == 0 and failure is None and not process_exit.stopped:
            # Another one, as other threads read it.
            rank = exited.worker.global_rank
            self.succeeded = {**self.succeeded, rank: process_exit.timestamp}
        self._notifier.notify(notifications.WorkerEnded, exited, process_exit.timestamp)
        if failure is not None and not self._cause:
            rank = exited.worker.global_rank
            self._cause = f"rank {rank} (pid {failure.pid}) failed: {failure.describe_exit()}"

    def collect(self, context: PContext, result: RunProcsResult | None) -> None:
        """Tell of those that `context` has looked after, with the failures of `result`."""
        for process_exit in context.take_exits():
            self.ended |= {process_exit.local_rank}
            failure = None if result is None else result.failures.get(process_exit.local_rank)
            exited = self._describe(process_exit, failure)
            self._notifier.notify(notifications.WorkerExited, exited)

    def note_step(self, step: StopStep) -> None:
        """The stop sequence has taken a step."""
        self._notifier.notify(notifications.Stopping, step)
        if step.step == "waiting" and self._cause and not self._notifier.state.is_job_wide:
            # The report will say so, too, but only when the stop is over.
            logger.warning("they are stopped because %s", self._cause)

    def _describe(self, process_exit: ProcessExit, failure: ProcessFailure | None) -> WorkerExit:
        return WorkerExit(
            worker=describe_worker(self._group.workers[process_exit.local_rank]),
            exitcode=process_exit.exitcode,
            stopped=process_exit.stopped,
            failure=failure,
        )
