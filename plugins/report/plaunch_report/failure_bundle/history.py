"""What the events of a launch come to, for a bundle: the last failure, ranks, processes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch.agent import RunResult
    from plaunch.events import Event

FIRST_EVENTS, LAST_EVENTS = 200, 10_000  # that are kept
_MOST_PROCESSES = 10_000


@dataclass(frozen=True)
class FailedAttempt:
    """One failure, as it was when a bundle was begun.

    Args:
        run_id: the job.
        name: what was run, as users call it.
        attempt: the number of the attempt that failed.
        reason: why the launch ended, or why the workers were started again.
        is_restart: whether they were.
        repeat: how many starts with that number there were before, after failures that cost no
            restart.
        result: how the run ended, if it has.
        failures: the events of the workers that failed, by global rank; the first one comes first.
        stopped: exit codes of those that were stopped, by global rank.
        ranks: the global ranks of this node's workers, by local rank.
        pids: the processes of all workers of this launch on this node.
        began: when the launch began, in seconds of the monotonic clock.
        events: all events that are kept.
        left_out: how many there were beside these.
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


class History:
    """Keeps the events of one launch in bounds: the first few, and the last ones.

    Args:
        run_id: the job.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._first: list[Event] = []
        self._last: deque[Event] = deque(maxlen=LAST_EVENTS)
        self._count = 0
        self._name = ""
        self._attempt, self._repeat = -1, 0  # of the workers that were started last
        self._failures: dict[int, Event] = {}
        self._stopped: dict[int, int] = {}
        self._ranks: dict[int, int] = {}
        self._pids: deque[int] = deque(maxlen=_MOST_PROCESSES)

    def note(self, event: Event) -> None:
        """Take the next event."""
        self._count += 1
        (self._first if len(self._first) < FIRST_EVENTS else self._last).append(event)
        told = event.metadata
        if event.name == "plaunch.launcher.started":
            self._name = str(told["entry_point"])
        elif event.name == "plaunch.workers.started":
            attempt = _number(told["attempt"])
            self._repeat = self._repeat + 1 if attempt == self._attempt else 0
            self._attempt = attempt
        elif event.name == "plaunch.worker.started":
            self._ranks[_number(told["local_rank"])] = _number(told["global_rank"])
            self._pids.append(_number(told["worker_pid"]))
        elif event.name == "plaunch.worker.exited" and told["stopped"]:
            self._stopped[_number(told["global_rank"])] = _number(told["exit_code"])
        elif event.name == "plaunch.failure":
            rank = _number(told["global_rank"])
            self._failures.pop(rank, None)
            if told["is_first"]:
                self._failures = {rank: event, **self._failures}
            else:
                self._failures[rank] = event

    def failed(self, event: Event, result: RunResult | None = None) -> FailedAttempt:
        """What has failed when `event` says so: the end of the launch, or a restart."""
        attempt = _number(event.metadata["attempt"])
        is_restart = event.name == "plaunch.restart"
        if is_restart and attempt != self._attempt:  # else it was one that cost nothing
            attempt = max(attempt - 1, 0)
        return FailedAttempt(
            run_id=self._run_id,
            name=self._name,
            attempt=attempt,
            reason=str(event.metadata["reason"]),
            is_restart=is_restart,
            repeat=self._repeat if is_restart else 0,
            result=result,
            failures=dict(self._failures),
            stopped=dict(self._stopped),
            ranks=dict(self._ranks),
            pids=frozenset(self._pids),
            began=self._first[0].monotonic if self._first else 0.0,
            events=(*self._first, *self._last),
            left_out=self._count - len(self._first) - len(self._last),
        )

    def forget_failure(self) -> None:
        """The workers are started again: what failed before does not belong to the next attempt."""
        self._failures, self._stopped, self._ranks = {}, {}, {}


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1
