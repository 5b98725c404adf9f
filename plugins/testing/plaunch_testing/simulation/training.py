"""The work of a simulated job, beyond all nodes: which ranks train together, until when."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from plaunch_testing.simulation.record import StartedWorker

if TYPE_CHECKING:
    from plaunch.agent.worker import WorkerGroup

    from plaunch_testing.simulation.hub import Hub, SimulatedHost
    from plaunch_testing.simulation.record import InjectedCause

__all__ = ["RoundPart", "TrainedRound", "Training"]

# Seconds after the loss of a rank in which its peers fail, if they do.
_PEERS_NOTICE = 1.0
# Seconds after which workers that wait for a lost rank are reported as hanging.
_HANG_TIMEOUT = 15.0


class RoundPart(Protocol):
    """The workers of one node in a round.

    Attributes:
        group: the workers.
        host: where they run.
        name: of the node.
        is_running: whether any of them does.
        trained: the round that they are in.
    """

    group: WorkerGroup
    host: SimulatedHost
    name: str
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


class TrainedRound:
    """The workers of one round on all nodes, as they really are.

    Args:
        key: the incarnation of the job in the store, the number of the round, and the attempt.
        world_size: the number of ranks.
    """

    def __init__(self, key: tuple[str, int, int], world_size: int) -> None:
        self.incarnation, self.number, self.attempt = key
        self.world_size = world_size
        self.starts: list[StartedWorker] = []
        self.parts: list[RoundPart] = []
        self.ranks: set[int] = set()
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
        self.hangs: list[float] = []  # when hangs were reported because peers wait for a lost rank
        self._hub = hub
        self._duration = duration
        self._peers_fail = peers_fail
        self._current: dict[tuple[str, int, int], TrainedRound] = {}

    def start(self, part: RoundPart, key: tuple[str, int, int]) -> TrainedRound:
        """Workers of a node have started in a round."""
        world_size = part.group.workers[0].world_size
        trained = self._current.get(key)
        if trained is None:
            trained = self._current[key] = TrainedRound(key, world_size)
            self.rounds.append(trained)
        trained.parts.append(part)
        master = f"{part.group.master_addr}:{part.group.master_port}"
        for worker in part.group.workers:
            rank, local_rank, size = worker.global_rank, worker.local_rank, worker.world_size
            started = StartedWorker(
                rank, local_rank, size, master, part.name, part.host.name, self._hub.now
            )
            trained.starts.append(started)
            trained.ranks.add(rank)
        if len(trained.ranks) == world_size:
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
