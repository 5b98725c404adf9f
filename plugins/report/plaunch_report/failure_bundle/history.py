"""The events of a launch and the failed attempt they describe, for a failure bundle."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plaunch_events import LauncherHistory

if TYPE_CHECKING:
    from plaunch.agent import RunResult
    from plaunch.events import Event

FIRST_EVENTS, LAST_EVENTS = 200, 10_000  # events to keep
_MAX_PROCESSES = 10_000


@dataclass(frozen=True)
class FailedAttempt:
    """A failed attempt, as known when its bundle is written.

    Args:
        run_id: the id of the job.
        name: the entry point, for messages.
        attempt: the number of the attempt that failed.
        reason: why the launch ended, or why the workers are restarted.
        is_restart: whether the workers are restarted.
        repeat: how often workers were started before with this attempt number, after restarts that
            were not counted against --max-restarts.
        result: the result of the run, if it has ended.
        failures: the events of the workers that failed, by global rank; the first failure is the
            first item.
        stopped: exit codes of workers that the agent stopped, by global rank.
        ranks: the global ranks of this node's workers, by local rank.
        pids: the process ids of all workers of this launch on this node.
        began: when the launch began, in seconds of the monotonic clock.
        events: the events that are kept.
        left_out: how many other events there were.
    """

    run_id: str
    name: str
    attempt: int
    reason: str = ""
    is_restart: bool = False
    repeat: int = 0
    result: RunResult | None = None
    failures: dict[int, Event] = field(default_factory=dict)
    stopped: dict[int, int] = field(default_factory=dict)
    ranks: dict[int, int] = field(default_factory=dict)
    pids: frozenset[int] = frozenset()
    began: float = 0.0
    events: tuple[Event, ...] = ()
    left_out: int = 0


class FailureHistory:
    """Keeps the first and the last events of a launch, and describes its failures.

    Args:
        run_id: the id of the job.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._history: LauncherHistory[Event] = LauncherHistory(_MAX_PROCESSES)
        self._first: list[Event] = []
        self._last: deque[Event] = deque(maxlen=LAST_EVENTS)
        self._count = 0
        self._name = ""

    def note(self, event: Event) -> None:
        """Add the next event."""
        self._count += 1
        (self._first if len(self._first) < FIRST_EVENTS else self._last).append(event)
        self._history.note(event)
        if event.name == "plaunch.launcher.started":
            self._name = str(event.metadata["entry_point"])

    def describe_failure(self, event: Event, result: RunResult | None = None) -> FailedAttempt:
        """Describe the attempt that failed, after `event`: a restart, or the end of the launch."""
        history = self._history
        attempt = int(event.metadata["attempt"] or 0)
        is_restart = event.name == "plaunch.restart"
        if is_restart and attempt != history.attempt:  # equal if it is not charged to the budget
            attempt = max(attempt - 1, 0)
        workers = history.round.workers.values()
        return FailedAttempt(
            run_id=self._run_id,
            name=self._name,
            attempt=attempt,
            reason=str(event.metadata["reason"]),
            is_restart=is_restart,
            repeat=history.repeat if is_restart else 0,
            result=result,
            failures=dict(history.round.failures),
            stopped={
                worker.global_rank: worker.exit_code
                for worker in workers
                if worker.is_stopped and worker.exit_code is not None
            },
            ranks={worker.local_rank: worker.global_rank for worker in workers},
            pids=frozenset(run.pid for run in history.runs),
            began=self._first[0].monotonic if self._first else 0.0,
            events=(*self._first, *self._last),
            left_out=self._count - len(self._first) - len(self._last),
        )
