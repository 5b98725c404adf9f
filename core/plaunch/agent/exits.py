"""Notifies listeners of the exits of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.agent import notifications
from plaunch.process.failure import describe_early_ends, first_failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from plaunch.agent.notifications import Notifier
    from plaunch.process.components import WorkerExit
    from plaunch.process.failure import ProcessFailure
    from plaunch.process.stopping.stop_sequence import StopStep


class ExitReporter:
    """Observes the context of one round, and notifies the agent's listeners.

    Args:
        notifier: notifies them.
    """

    def __init__(self, notifier: Notifier) -> None:
        self.ended: frozenset[int] = frozenset()  # local ranks
        self.succeeded: dict[int, float] = {}  # when, by global rank, in seconds since the epoch
        self._notifier = notifier

    def worker_ended(self, exit: WorkerExit) -> None:
        """Record the exit of a worker that has just ended, and notify the listeners."""
        self.ended |= {exit.local_rank}
        rank = exit.worker.global_rank
        if exit.succeeded:
            # A new dictionary, since other threads read the old one.
            self.succeeded = {**self.succeeded, rank: exit.timestamp}
        self._notifier.notify(notifications.WorkerExitSeen, exit)

    def report(self, exits: Iterable[WorkerExit]) -> None:
        """Notify the listeners of exits that the agent has dealt with."""
        for each in exits:
            self._notifier.notify(notifications.WorkerExited, each)

    def early_ends(self, failures: Mapping[int, ProcessFailure]) -> list[str]:
        """Which workers had succeeded before the first of these failures; empty if none had."""
        if not failures:
            return []
        line = describe_early_ends(self.succeeded, first_failure(failures)[1].timestamp)
        return [line] if line else []

    def stop_stepped(self, step: StopStep) -> None:
        """Notify the listeners of a step of the stop sequence."""
        self._notifier.notify(notifications.Stopping, step)
