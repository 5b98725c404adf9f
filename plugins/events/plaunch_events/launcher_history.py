"""The history of one launcher, folded from its events: its rounds, workers, failures and times."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from plaunch_events.time_accounting import EventLike, LaunchPhase, TimeAccount

if TYPE_CHECKING:
    from collections.abc import Mapping

FINISHED: Final = "finished"
"""The phase after the last event of a launcher; the others are those of `LaunchPhase`."""

PHASES: Final = (*(phase.value for phase in LaunchPhase), FINISHED)


_E = TypeVar("_E", bound=EventLike)


@dataclass(slots=True)
class WorkerRun:
    """One worker process. Numbers that its events lack are -1.

    Args:
        round: the round that it was started in.
        attempt: the attempt of that round.
        local_rank: its local rank.
        global_rank: its global rank.
        pid: its process id.
        began: when its start was recorded, on the monotonic clock.
        changed: when it was started or, later, when it exited, in seconds since the epoch.
        ended: when its exit was recorded, on the monotonic clock; None while it runs.
        exit_code: its exit code; None while it runs.
        signal_name: the signal that ended it; empty if none did.
        is_stopped: whether the agent stopped it.
    """

    round: int
    attempt: int
    local_rank: int
    global_rank: int
    pid: int
    began: float
    changed: float
    ended: float | None = None
    exit_code: int | None = None
    signal_name: str = ""
    is_stopped: bool = False

    @property
    def state(self) -> str:
        """running, succeeded, failed, or stopped (by the agent)."""
        if self.ended is None:
            return "running"
        return worker_state({"exit_code": self.exit_code, "stopped": self.is_stopped})

    def note_exit(self, event: EventLike) -> None:
        """Add its `plaunch.worker.exited`."""
        self.ended, self.changed = event.monotonic, event.timestamp
        self.exit_code = find_int(event, "exit_code")
        self.signal_name = str(event.metadata.get("signal_name") or "")
        self.is_stopped = event.metadata.get("stopped") is True


@dataclass
class RoundHistory(Generic[_E]):
    """What happened on one node in one round.

    Args:
        workers: the workers, by local rank.
        failures: the event of each worker that failed, on any node, by global rank. The job's
            first failure is the first item.
    """

    workers: dict[int, WorkerRun] = field(default_factory=dict)
    failures: dict[int, _E] = field(default_factory=dict)


class LauncherHistory(Generic[_E]):
    """Folds the events of one launcher, in order.

    Args:
        max_runs: how many of the last worker processes `runs` keeps; None for all.
    """

    def __init__(self, max_runs: int | None = 0) -> None:
        self.account = TimeAccount()
        self.phase = self.account.phase.value
        self.first: _E | None = None
        self.last: _E | None = None
        self.phase_began: _E | None = None  # the event that began the phase
        self.end: _E | None = None  # plaunch.launcher.finished
        self.round: RoundHistory[_E] = RoundHistory()  # the current one
        self.failed_round: RoundHistory[_E] | None = None  # the last one with a failure
        self.runs: deque[WorkerRun] = deque(maxlen=max_runs)
        self.attempt = -1  # of the workers that were started last
        self.repeat = 0  # how often workers were started before with that attempt

    def note(self, event: _E) -> None:
        """Add the next event."""
        if self.first is None:
            self.first = event
        self.last = event
        self.account.note(event)
        phase = self.account.phase.value
        if event.name == "plaunch.launcher.finished":
            self.end, phase = event, FINISHED
        if phase != self.phase:
            self.phase, self.phase_began = phase, event
        self._note_round(event)

    def _note_round(self, event: _E) -> None:
        name = event.name
        if name == "plaunch.rendezvous.completed":
            self.round = RoundHistory()
        elif name == "plaunch.worker.started":
            self._note_start(event)
        elif name == "plaunch.worker.exited":
            run = self.round.workers.get(get_int(event, "local_rank"))
            if run is not None and run.pid == get_int(event, "worker_pid"):
                run.note_exit(event)
        elif name == "plaunch.workers.started":
            attempt = get_int(event, "attempt")
            self.repeat = self.repeat + 1 if attempt == self.attempt else 0
            self.attempt = attempt
        elif name == "plaunch.failure":
            self._note_failure(event)

    def _note_start(self, event: _E) -> None:
        run = WorkerRun(
            round=get_int(event, "round"),
            attempt=get_int(event, "attempt"),
            local_rank=get_int(event, "local_rank"),
            global_rank=get_int(event, "global_rank"),
            pid=get_int(event, "worker_pid"),
            began=event.monotonic,
            changed=event.timestamp,
        )
        self.round.workers[run.local_rank] = run
        self.runs.append(run)

    def _note_failure(self, event: _E) -> None:
        self.failed_round = self.round
        failures, rank = self.round.failures, get_int(event, "global_rank")
        failures.pop(rank, None)  # a later report is more complete
        if event.metadata.get("is_first"):
            self.round.failures = {rank: event, **failures}
        else:
            failures[rank] = event


def find_int(event: EventLike, key: str) -> int | None:
    """The whole number under `key`, or None; records from files may have anything there."""
    value = event.metadata.get(key)
    return value if type(value) is int else None


def get_int(event: EventLike, key: str) -> int:
    """The whole number under `key`, or -1."""
    value = find_int(event, key)
    return -1 if value is None else value


def worker_state(metadata: Mapping[str, object]) -> str:
    """The state of a worker after `plaunch.worker.exited`: succeeded, failed, or stopped."""
    if metadata.get("stopped"):
        return "stopped"
    return "failed" if metadata.get("exit_code") else "succeeded"
