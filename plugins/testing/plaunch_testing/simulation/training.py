"""The work of a simulated job, beyond all nodes: which ranks train together, until when."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from plaunch.agent.worker import WorkerGroup

    from plaunch_testing.simulation.hub import Hub, SimulatedHost

__all__ = ["CLOCK_TOLERANCE", "InjectedCause", "RoundPart", "TrainedRound", "Training"]

# Seconds after the loss of a rank in which its peers fail, if they do.
_PEERS_NOTICE = 1.0
# Seconds after which workers that wait for a lost rank are reported as hanging.
_HANG_TIMEOUT = 15.0
_REPORTING = 2.0  # seconds within which nodes report their failures
# Seconds by which clocks may differ, as docs/membership.md says, and some for reports on the way.
CLOCK_TOLERANCE = 5.0 + 1.0


class RoundPart(Protocol):
    """The workers of one node in a round.

    Attributes:
        group: the workers.
        host: where they run.
        is_running: whether any of them does.
        trained: the round that they are in.
    """

    group: WorkerGroup
    host: SimulatedHost
    is_running: bool
    trained: TrainedRound | None

    @property
    def is_stopping(self) -> bool:
        """Whether they are being stopped."""

    def lose_peer(self, trained: TrainedRound) -> None:
        """Their peers of a round are gone, and they notice."""

    def report_hang(self, trained: TrainedRound) -> bool:
        """Let the agent's extension report that they hang; whether any of them runs."""

    def succeed(self, trained: TrainedRound) -> None:
        """All of them have finished a round."""


@dataclass(frozen=True)
class InjectedCause:
    """Something that can end the attempt of a round by itself, or the consequence of that.

    Args:
        at: virtual seconds.
        timestamp: the same on the wall clock of its host, which the nodes compare.
        host: where it has happened.
        rank: of the worker.
        exitcode: of the worker.
        is_certain: whether its node must report it: its workers were not being stopped.
    """

    at: float
    timestamp: float
    host: str
    rank: int | None
    exitcode: int
    is_certain: bool

    def is_before(self, other: InjectedCause) -> bool:
        """Whether it came first, whatever the clocks of the hosts show.

        If the clocks differ by more than the tolerance, the order is as exact as the times at which
        the nodes report.
        """
        gap = other.at - self.at
        skew = abs((other.timestamp - other.at) - (self.timestamp - self.at))
        if skew < CLOCK_TOLERANCE - _REPORTING:
            return gap > 0 and self.timestamp < other.timestamp
        return gap > (_REPORTING if skew > CLOCK_TOLERANCE + _REPORTING else CLOCK_TOLERANCE)

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} with {self.exitcode} at {self.at:.3f} s"


class TrainedRound:
    """The workers of one round on all nodes, as they really are.

    Args:
        key: the incarnation of the job in the store, the number of the round, and the attempt.
        world_size: the number of ranks.
        master: the address and the port of the workers' store.
        began: when the first of them started.
    """

    def __init__(
        self,
        key: tuple[str, int, int],
        world_size: int,
        master: tuple[str | None, int | None],
        began: float,
    ) -> None:
        self.incarnation, self.number, self.attempt = key
        self.world_size = world_size
        self.master = master
        self.began = began
        self.parts: list[RoundPart] = []
        self.ranks: dict[int, RoundPart] = {}
        self.ends: dict[RoundPart, float] = {}  # when the workers of a node were gone
        self.causes: list[InjectedCause] = []
        self.consequences: list[InjectedCause] = []  # failures of peers of a lost rank
        self.completed_at: float | None = None  # when all ranks had started
        self.finished_at: float | None = None  # when the work of all ranks was done
        self.broken_at: float | None = None  # when a rank was lost
        self.succeeded: list[RoundPart] = []  # those all of whose workers have

    @property
    def has_succeeded(self) -> bool:
        """Whether all workers of all nodes have."""
        return self.completed_at is not None and len(self.succeeded) == len(self.parts)

    @property
    def is_broken(self) -> bool:
        """Whether a rank is lost."""
        return self.broken_at is not None

    def __str__(self) -> str:
        return f"round {self.number} (attempt {self.attempt}) of job {self.incarnation[:4]}"


class Training:
    """The job's work, beyond all nodes: who trains with whom, and when a round is done.

    Ranks meet in collectives: a round makes progress only while all of its ranks run. When a rank
    is gone, its peers fail soon after it, or wait for it.

    Args:
        hub: has the clock.
        duration: seconds that a complete round trains.
        peers_fail: whether peers of a lost rank fail; otherwise they hang, until that is found.
    """

    def __init__(self, hub: Hub, duration: float, *, peers_fail: bool) -> None:
        self.rounds: list[TrainedRound] = []
        self.findings: list[str] = []
        self.hangs: list[float] = []  # when hangs were reported because peers wait for a lost rank
        self._hub = hub
        self._duration = duration
        self._peers_fail = peers_fail
        self._current: dict[tuple[str, int, int], TrainedRound] = {}

    def start(self, part: RoundPart, key: tuple[str, int, int]) -> TrainedRound:
        """Workers of a node have started in a round."""
        world_size = part.group.workers[0].world_size
        number = key[1]
        trained = self._current.get(key)
        if trained is None:
            master = part.group.master_addr, part.group.master_port
            trained = TrainedRound(key, world_size, master, self._hub.now)
            self._current[key] = trained
            self.rounds.append(trained)
        trained.parts.append(part)
        for worker in part.group.workers:
            rank = worker.global_rank
            other = trained.ranks.get(rank)
            if worker.world_size != trained.world_size:
                self.findings.append(
                    f"round {number}: {part.host.name} has a world of {worker.world_size}, others "
                    f"one of {trained.world_size}"
                )
            if (part.group.master_addr, part.group.master_port) != trained.master:
                self.findings.append(
                    f"round {number}: {part.host.name} has another address of rank 0 than others"
                )
            if other is not None and other.is_running:
                self.findings.append(
                    f"round {number}: rank {rank} runs on {other.host.name} and {part.host.name}"
                )
            trained.ranks[rank] = part
        if len(trained.ranks) == world_size:
            if set(trained.ranks) != set(range(world_size)):
                self.findings.append(f"round {number}: ranks {sorted(trained.ranks)}")
            trained.completed_at = self._hub.now
            self._hub.call_later(self._duration, lambda: self._complete(trained))
        return trained

    def lose(self, part: RoundPart) -> None:
        """Workers of a node are gone, without success."""
        trained = part.trained
        if trained is None or trained.is_broken:
            return
        trained.broken_at = self._hub.now
        if self._peers_fail:
            for other in trained.parts:
                if other is not part:
                    delay = self._hub.random.uniform(0.0, _PEERS_NOTICE)
                    self._hub.call_later(delay, partial(other.lose_peer, trained))
        self._hub.call_later(_HANG_TIMEOUT, lambda: self._find_hang(trained))

    def _find_hang(self, trained: TrainedRound) -> None:
        """Report a hang, as an extension would: on one node, while its workers run."""
        for part in trained.parts:
            if part.report_hang(trained):
                self.hangs.append(self._hub.now)
                return

    def _complete(self, trained: TrainedRound) -> None:
        if trained.is_broken or not all(part.is_running for part in trained.parts):
            return
        if any(part.is_stopping for part in trained.parts):
            return
        trained.finished_at = self._hub.now
        for part in trained.parts:
            # Ranks end within moments of each other.
            self._hub.call_later(self._hub.random.uniform(0.0, 0.3), partial(part.succeed, trained))
