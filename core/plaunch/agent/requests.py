"""What other threads may ask of an agent, and what they may know of it."""

from __future__ import annotations

from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from plaunch.agent.states import Requested, RequestKind
from plaunch.process.streams import OutputCounts
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping

    from plaunch.agent.poller import WakeUp
    from plaunch.agent.worker import WorkerState


class Progress(NamedTuple):
    """The progress that a worker has reported.

    Args:
        step: its current step.
        total: how many there are; None if it has not reported that.
        rate: recent steps per second; 0 if unknown.
    """

    step: int
    total: int | None = None
    rate: float = 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds for the remaining steps at that rate; None if unknown."""
        if self.total is None or self.rate <= 0:
            return None
        return max(self.total - self.step, 0) / self.rate


@plain_dataclass
class Snapshot(Value):
    """The state of an agent at one time; a launch adds `overdue` to `dropped`.

    Args:
        state: of its workers.
        round: how many worlds were formed before this one; -1 before the first. Like `attempt`, it
            is that of the last round until the next one has formed.
        attempt: how many restarts were used before this round.
        ranks: the global ranks of its workers; empty before the first round.
        pids: the process ids of those that run, by global rank.
        waits_for: what the agent or its rendezvous waits for before workers are started, in a few
            words; empty if nothing.
        overdue: seconds since the last sign of life of a loop that is overdue, or 0.
        patience: seconds from that sign until the next one is due.
        output: how much output of the workers has passed through the launcher.
        dropped: how many events each handler has missed, by name.
        is_job_wide: whether the rendezvous knows the whole job, so that a stop or a restart that is
            requested here applies to all of its nodes.
        stdouts: the files with the workers' standard output in this round, by local rank; a worker
            without one is missing, or has an empty text.
        stderrs: the same for standard error.
        progress: of the workers, by global rank, if an extension reports it.
        succeeded: when workers ended that have succeeded, by global rank, in seconds since the
            epoch.
        notes: the states that extensions show, by name.
    """

    state: WorkerState
    round: int
    attempt: int
    ranks: tuple[int, ...]
    pids: Mapping[int, int]
    waits_for: str = ""
    overdue: float = 0.0
    patience: float = 0.0
    output: OutputCounts = field(default_factory=OutputCounts)
    dropped: Mapping[str, int] = field(default_factory=dict)
    is_job_wide: bool = False
    stdouts: Mapping[int, str] = field(default_factory=dict)
    stderrs: Mapping[int, str] = field(default_factory=dict)
    progress: Mapping[int, Progress] = field(default_factory=dict)
    succeeded: Mapping[int, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


class SignalWorkers(NamedTuple):
    """A signal for the running workers, or some global ranks of them, without stopping them.

    The reason is reported for a worker that it ends.
    """

    signum: signal.Signals
    ranks: frozenset[int] | None
    reason: str


class Hang(NamedTuple):
    """Running workers hang; the one of this global rank counts as failed."""

    rank: int
    text: str
    is_final: bool


class Requests:
    """Keeps requests of any thread until the loop takes them.

    Args:
        wake_up: is woken at every request.
    """

    def __init__(self, wake_up: WakeUp) -> None:
        self._wake_up = wake_up
        self._asked: deque[Requested | SignalWorkers | Hang] = deque()

    def put(self, request: Requested | SignalWorkers | Hang) -> None:
        """Add a request, and wake the loop."""
        self._asked.append(request)
        self._wake_up.wake()

    def take(self) -> list[Requested | SignalWorkers | Hang]:
        """All requests since the last call, in order."""
        return [self._asked.popleft() for _ in range(len(self._asked))]

    def has_end(self) -> bool:
        """Whether a request that has not been taken yet asks for the end of the run."""
        return any(
            isinstance(request, Requested) and request.kind is not RequestKind.RESTART
            for request in tuple(self._asked)
        )
