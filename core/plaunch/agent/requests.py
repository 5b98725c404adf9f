"""What other threads may ask of an agent, and what they may know of it."""

from __future__ import annotations

from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from plaunch.agent.states import Requested, RequestKind
from plaunch.process.streams.api import OutputCounts
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping

    from plaunch.agent.poller import WakeUp
    from plaunch.agent.worker import WorkerState


class Progress(NamedTuple):
    """How far a worker says that it is.

    Args:
        step: the step that it is at.
        total: how many there are; None if it has not said.
        rate: steps in a second, of late; 0 if that is not known.
    """

    step: int
    total: int | None = None
    rate: float = 0.0

    @property
    def seconds_left(self) -> float | None:
        """How long the others take at that rate; None if that is not known."""
        if self.total is None or self.rate <= 0:
            return None
        return max(self.total - self.step, 0) / self.rate


@plain_dataclass
class Snapshot(Value):
    """What an agent does at one moment; `overdue` to `dropped` are of a launch, not of the agent.

    Args:
        state: that of its workers.
        round: how many worlds were formed before this one; -1 before the first.
        attempt: how many restarts were used.
        ranks: the global ranks of its workers; empty before the first round.
        pids: the process ids of those that run, by global rank.
        waits_for: whom or what the agent or its rendezvous waits for before the workers are
            started, in a few words; empty if they do not.
        overdue: seconds for which the agent's loop was not heard of that should have been, or 0.
        patience: seconds within which it should have been heard of.
        output: how much output of the workers has passed through the launcher.
        dropped: how many events each handler has not had, by name.
        is_job_wide: whether the rendezvous knows the whole job, so that a stop and a restart that
            are asked for here are for all of its nodes.
        stdouts: the files that have the workers' standard output in this round, by local rank;
            those of whom there is none are missing, or have an empty text.
        stderrs: the same for standard error.
        progress: how far workers are, by global rank, as far as an extension knows it.
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
    """A signal for the workers that run, or for some global ranks of them; they go on.

    The reason is reported for a worker that ends by it.
    """

    signum: signal.Signals
    ranks: frozenset[int] | None
    reason: str


class Hang(NamedTuple):
    """Workers that run have been found to hang: that of this global rank counts as failed."""

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
        """Ask for something."""
        self._asked.append(request)
        self._wake_up.wake()

    def take(self) -> list[Requested | SignalWorkers | Hang]:
        """All requests since the last call, in order."""
        return [self._asked.popleft() for _ in range(len(self._asked))]

    def has_end(self) -> bool:
        """Whether one that has not been taken yet asks for the end of the run."""
        return any(
            isinstance(request, Requested) and request.kind is not RequestKind.RESTART
            for request in tuple(self._asked)
        )
