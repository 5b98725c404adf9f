"""The work of a simulated job, beyond all nodes: which ranks train together, until when."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from plaunch.agent.worker import WorkerGroup

    from plaunch_testing.simulation.hub import Hub, SimulatedHost

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
        is_running: whether any of them does.
        trained: the round that they are in.
    """

    group: WorkerGroup
    host: SimulatedHost
    is_running: bool
    trained: TrainedRound | None

    def lose_peer(self, trained: TrainedRound) -> None:
        """Their peers of a round are gone, and they notice."""

    def report_hang(self, trained: TrainedRound) -> bool:
        """Let the agent's extension report that they hang; whether any of them runs."""

    def succeed(self, trained: TrainedRound) -> None:
        """All of them have finished a round."""


class TrainedRound:
    """The workers of one round on all nodes, as they really are.

    Args:
        incarnation: of the job in the store.
        number: of the round.
        attempt: of the job.
        world_size: the number of ranks.
        began: when the first of them started.
    """

    def __init__(
        self, incarnation: str, number: int, attempt: int, world_size: int, began: float
    ) -> None:
        self.incarnation = incarnation
        self.number = number
        self.attempt = attempt
        self.world_size = world_size
        self.began = began
        self.parts: list[RoundPart] = []
        self.ranks: dict[int, RoundPart] = {}
        self.ends: dict[RoundPart, float] = {}  # when the workers of a node were gone
        self.completed_at: float | None = None  # when all ranks had started
        self.is_broken = False
        self.has_succeeded = False

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
        self.hangs = 0  # that were reported because peers wait for a lost rank
        self._hub = hub
        self._duration = duration
        self._peers_fail = peers_fail
        self._current: dict[tuple[str, int, int], TrainedRound] = {}

    def start(self, part: RoundPart, key: tuple[str, int, int]) -> TrainedRound:
        """Workers of a node have started in a round."""
        world_size = part.group.workers[0].world_size
        incarnation, number, attempt = key
        trained = self._current.get(key)
        if trained is None:
            trained = TrainedRound(incarnation, number, attempt, world_size, self._hub.now)
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
        trained.is_broken = True
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
                self.hangs += 1
                return

    def _complete(self, trained: TrainedRound) -> None:
        if trained.is_broken or not all(part.is_running for part in trained.parts):
            return
        trained.has_succeeded = True
        for part in trained.parts:
            # Ranks end within moments of each other.
            self._hub.call_later(self._hub.random.uniform(0.0, 0.3), partial(part.succeed, trained))
