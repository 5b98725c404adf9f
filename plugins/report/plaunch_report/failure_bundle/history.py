"""The events of a launch and the failed attempt they describe, for a failure bundle."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plaunch_events import LauncherHistory, RoundHistory

if TYPE_CHECKING:
    from plaunch.agent import RunResult
    from plaunch.events import Event

FIRST_EVENTS, LAST_EVENTS = 200, 10_000  # events to keep
_MAX_PROCESSES = 10_000


@dataclass(frozen=True)
class FailedAttempt:
    """A failed attempt, as known when its bundle is written.

    Args:
        name: the entry point, for messages.
        attempt: the number of the attempt that failed.
        reason: why the launch ended, or why the workers are restarted.
        is_restart: whether the workers are restarted.
        repeat: how often workers were started before with this attempt number, after restarts that
            were not counted against --max-restarts.
        result: the result of the run, if it has ended.
        round: the round that failed; it does not change any more.
        pids: the process ids of all workers of this launch on this node.
        events: the events that are kept.
        left_out: how many other events there were.
    """

    name: str
    attempt: int
    reason: str = ""
    is_restart: bool = False
    repeat: int = 0
    result: RunResult | None = None
    round: RoundHistory[Event] = field(default_factory=RoundHistory)
    pids: frozenset[int] = frozenset()
    events: tuple[Event, ...] = ()
    left_out: int = 0

    @property
    def ranks(self) -> dict[int, int]:
        """The global ranks of this node's workers, by local rank."""
        return {rank: worker.global_rank for rank, worker in self.round.workers.items()}

    @property
    def stopped(self) -> dict[int, int]:
        """The exit codes of workers that the agent stopped, by global rank."""
        return {
            worker.global_rank: worker.exit_code
            for worker in self.round.workers.values()
            if worker.is_stopped and worker.exit_code is not None
        }


class FailureHistory:
    """Keeps the first and the last events of a launch, and describes its failures."""

    def __init__(self) -> None:
        self._history: LauncherHistory[Event] = LauncherHistory(_MAX_PROCESSES)
        self._first: list[Event] = []
        self._last: deque[Event] = deque(maxlen=LAST_EVENTS)
        self._count = 0

    def note(self, event: Event) -> None:
        """Add the next event."""
        self._count += 1
        (self._first if len(self._first) < FIRST_EVENTS else self._last).append(event)
        self._history.note(event)

    def describe_failure(self, event: Event, result: RunResult | None = None) -> FailedAttempt:
        """Describe the attempt that failed, after `event`: a restart, or the end of the launch."""
        history = self._history
        attempt = int(event.metadata["attempt"] or 0)
        is_restart = event.name == "plaunch.restart"
        if is_restart and attempt != history.attempt:  # equal if it is not charged to the budget
            attempt = max(attempt - 1, 0)
        first = history.first
        return FailedAttempt(
            name="" if first is None else str(first.metadata.get("entry_point", "")),
            attempt=attempt,
            reason=str(event.metadata["reason"]),
            is_restart=is_restart,
            repeat=history.repeat if is_restart else 0,
            result=result,
            round=history.round,
            pids=frozenset(run.pid for run in history.runs),
            events=(*self._first, *self._last),
            left_out=self._count - len(self._first) - len(self._last),
        )
