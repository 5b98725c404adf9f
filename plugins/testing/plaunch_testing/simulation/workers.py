"""Simulated workers: processes that train together, fail, hang, resist and end."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.agent.worker import RunResult, WorkerState
from plaunch.errors import ExitCode, UnkillableWorkerError
from plaunch.process.consequences import Consequence
from plaunch.process.failure import ProcessFailure
from plaunch.process.watches import HeldProcesses

from plaunch_testing.simulation.hub import EPOCH
from plaunch_testing.simulation.record import InjectedCause

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from plaunch.agent.extensions import Hang
    from plaunch.agent.worker import WorkerGroup
    from plaunch.process.streams import Streams

    from plaunch_testing.simulation.hub import Hub, SimulatedHost
    from plaunch_testing.simulation.modules import SimulatedSystem
    from plaunch_testing.simulation.training import TrainedRound, Training

__all__ = ["SimulatedWorkers", "WorkerTraits"]

_SETTLE_TIME = 0.1  # seconds, as that of real workers
_NO_CONSEQUENCE = Consequence("", False)
_PEER_IS_GONE = Consequence("Connection closed by peer", True)


@dataclass
class WorkerTraits:
    """How workers of a host behave; faults change it.

    Args:
        stop_time: seconds between the stop signal and their end; SIGKILL ends them at once.
        is_unkillable: whether they survive SIGKILL.
    """

    stop_time: float = 0.2
    is_unkillable: bool = False


class SimulatedRanks:
    """The processes of a node's workers, and what happens to them.

    Args:
        group: the workers.
        system: has their descriptor.
        training: the job's work.
        traits: how they behave.
        report_hang: reports that a rank hangs to the agent.
        describe_round: returns the incarnation, the round and the attempt that the agent is in.
        note: adds a line to the history.
    """

    def __init__(
        self,
        group: WorkerGroup,
        system: SimulatedSystem,
        training: Training,
        traits: WorkerTraits,
        report_hang: Callable[[int], None],
        describe_round: Callable[[], tuple[str, int, int]],
        note: Callable[[str], None],
    ) -> None:
        process = system.process
        assert process is not None
        self.group = group
        self.holds = HeldProcesses(describe=lambda pid: "")
        self.host: SimulatedHost = process.host
        self.name = f"{process.host.name}.{process.pid}"
        self.is_running = False
        self.trained: TrainedRound | None = None
        self._process = process
        self._hub = system.hub
        self._system = system
        self._training = training
        self._traits = traits
        self._report_hang = report_hang
        self._describe_round = describe_round
        self._note = note
        self._starts = 0
        self._fds = system.descriptors.pipe()
        self._failures: dict[int, ProcessFailure] = {}
        self._ended: dict[int, float] = {}  # successful workers, by global rank
        self._is_final = False
        self._unkillable: UnkillableWorkerError | None = None
        self._stop: SimulatedStop | None = None
        self._started_at = 0.0
        self.succeeded_at: float | None = None  # all of them, in this round

    def fail(self, local_rank: int, exitcode: int) -> bool:
        """A worker ends with an exit code, or by the signal of a negative one; whether it ran."""
        workers = self.group.workers
        if not self.is_running or local_rank >= len(workers):
            return False
        rank = workers[local_rank].global_rank
        if rank in self._ended or rank in self._failures:
            return False
        self._failures[rank] = self._failure(local_rank, exitcode, _NO_CONSEQUENCE)
        self._note(f"rank {rank} ends with {exitcode}")
        self._note_cause(self._failures[rank])
        self._training.lose(self)
        self._wake()
        return True

    def _note_cause(self, failure: ProcessFailure) -> None:
        if self.trained is not None:
            self.trained.causes.append(self._as_cause(failure))

    def _as_cause(self, failure: ProcessFailure) -> InjectedCause:
        return InjectedCause(
            self._hub.now,
            failure.began,
            self.host.name,
            failure.global_rank,
            failure.exitcode,
            self._stop is None,
        )

    def end_early(self, local_rank: int) -> bool:
        """A worker ends with 0 while its peers train; they will miss it."""
        workers = self.group.workers
        if not self.is_running or local_rank >= len(workers):
            return False
        rank = workers[local_rank].global_rank
        is_finished = self.trained is not None and self.trained.finished_at is not None
        if is_finished or rank in self._ended or rank in self._failures:
            return False
        self._ended[rank] = self._system.time()
        self._note(f"rank {rank} ends with 0, early")
        self._training.lose(self)
        self._wake()
        return True

    def lose_peer(self, trained: TrainedRound) -> None:
        """Their peers of a round are gone, and they notice."""
        if not self._trains(trained) or not self._process.is_alive:
            return
        for worker in self.group.workers:
            if worker.global_rank not in self._ended:
                failure = self._failure(worker.local_rank, 1, _PEER_IS_GONE)
                self._failures[worker.global_rank] = failure
                trained.consequences.append(self._as_cause(failure))
        self._note("the workers have lost their peers")
        self._wake()

    def _trains(self, trained: TrainedRound) -> bool:
        """Whether they run in a round, and none of them has failed."""
        return self.trained is trained and self.is_running and not self._failures

    @property
    def is_stopping(self) -> bool:
        """Whether they are being stopped."""
        return self._stop is not None

    def pids(self) -> dict[int, int]:
        """Made-up ids of the running workers."""
        return (
            {}
            if not self.is_running
            else {worker.global_rank: worker.id for worker in self.group.workers}
        )

    def report_hang(self, trained: TrainedRound) -> bool:
        """Let the agent's extension report that they hang; whether any of them runs."""
        if not self._trains(trained) or self.is_stopping or not self._process.is_alive:
            return False
        ranks = [rank for rank in self.pids() if rank not in self._ended]
        if not ranks:
            return False
        self._note(f"rank {ranks[0]} hangs")
        self._report_hang(ranks[0])
        return True

    def succeed(self, trained: TrainedRound) -> None:
        """All of them have finished a round."""
        if not self._trains(trained) or self.is_stopping:
            return
        for worker in self.group.workers:
            self._ended.setdefault(worker.global_rank, EPOCH + self._hub.now + self.host.offset)
        trained.succeeded.append(self)
        self._note("the workers have succeeded")
        self._wake()

    def vanish(self) -> None:
        """Their host has failed, or the guard has ended them with their agent."""
        if self.is_running:
            self._end()
            self._training.lose(self)

    def _end(self) -> None:
        self.is_running = False
        if self.trained is not None:
            self.trained.ends[self] = self._hub.now

    def _failure(self, local_rank: int, exitcode: int, consequence: Consequence) -> ProcessFailure:
        rank = self.group.workers[local_rank].global_rank
        return ProcessFailure(
            local_rank,
            1000 + rank,
            exitcode,
            "<N/A>",
            message="simulated",
            timestamp=EPOCH + self._hub.now + self.host.offset,
            global_rank=rank,
            host=self.host.name,
            lifetime=self._hub.now - self._started_at,
            known_place="train.py:1",
            known_consequence=consequence,
        )

    def _wake(self) -> None:
        if self._process.is_alive:
            self._system.descriptors.write(self._fds[1], b"\0")

    def _clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._system.descriptors.read(self._fds[0], 4096)


class SimulatedWorkers(SimulatedRanks):
    """The workers of one agent, as its loop drives them: `plaunch.agent.workers.Workers`."""

    settle_time = _SETTLE_TIME

    @property
    def is_final(self) -> bool:
        """Whether no restart may follow their failure."""
        return self._is_final

    def preparation(self) -> Callable[[], Mapping[str, float]] | None:
        """Nothing must be prepared."""
        return None

    def start(self) -> None:
        """Start them."""
        key = self._describe_round()
        _, number, attempt = key
        self._starts += 1
        self._failures, self._ended = {}, {}
        self._is_final, self._stop, self.is_running = False, None, True
        self._started_at, self.succeeded_at = self._hub.now, None
        for worker in self.group.workers:
            worker.id = 1000 * self._starts + worker.local_rank
        ranks = [worker.global_rank for worker in self.group.workers]
        self._note(
            f"starts ranks {ranks} of {self.group.workers[0].world_size} in round {number}, "
            f"attempt {attempt}"
        )
        self.trained = self._training.start(self, key)

    def forked(self) -> Collection[int]:
        """None was forked."""
        return ()

    def exit_fds(self) -> Sequence[int]:
        """A descriptor that becomes readable at an exit."""
        return self._fds[:1]

    def due(self) -> float | None:
        """Exits wake the loop."""
        return None

    def check(self) -> RunResult:
        """Return their state."""
        self._clear()
        if self._failures:
            return RunResult(WorkerState.FAILED, failures=dict(self._failures))
        if len(self._ended) == len(self.group.workers):
            if self.is_running:
                self._end()
                self.succeeded_at = self._hub.now
                if self.trained is not None and self not in self.trained.succeeded:
                    self.trained.succeeded.append(self)  # each has ended early
            return RunResult(WorkerState.SUCCEEDED, return_values=dict.fromkeys(self._ended))
        return RunResult(WorkerState.HEALTHY)

    def note_peers_ended(self, ago: float) -> None:
        """Note that most nodes have succeeded."""

    def fail_raised(self) -> bool:
        """None ends with an exception and runs on."""
        return False

    def tend_store(self) -> None:
        """The workers' store is not simulated."""
        self._clear()

    def begin_stop(self, signum: signal.Signals) -> SimulatedStop | None:
        """Begin to stop them."""
        if not self.is_running:
            return None
        takes = 0.0 if signum == signal.SIGKILL else self._traits.stop_time
        self._stop = SimulatedStop(self._hub, takes, self._finish_stop)
        return self._stop

    def begin_clearing(self) -> None:
        """Nothing is left behind."""

    def _finish_stop(self) -> None:
        if self._traits.is_unkillable:
            self._unkillable = UnkillableWorkerError("a simulated worker survives SIGKILL")
        self._end()
        self._training.lose(self)

    def end_stop(self) -> None:
        """The stop is over.

        Raises:
            UnkillableWorkerError: they have survived it.
        """
        self._clear()
        if self._unkillable is not None:
            raise self._unkillable

    def stopped_result(self) -> RunResult | None:
        """The result so far."""
        if not self._failures:
            return None
        return RunResult(WorkerState.FAILED, failures=dict(self._failures))

    def are_of_use(self) -> bool:
        """Whether the host can start workers again."""
        return self._unkillable is None

    def signal(
        self, signum: signal.Signals, ranks: Collection[int] | None = None, reason: str = ""
    ) -> None:
        """They ignore signals that do not stop them."""

    def note_hang(self, hang: Hang) -> None:
        """Make the next check fail, because they hang."""
        if not self.is_running:
            return
        ranks = {worker.global_rank: worker.local_rank for worker in self.group.workers}
        if hang.rank in ranks and hang.rank not in self._failures:
            self._is_final = hang.is_final
            self._failures[hang.rank] = self._failure(
                ranks[hang.rank], int(ExitCode.HANG), _NO_CONSEQUENCE
            )
            self._note_cause(self._failures[hang.rank])
            self._wake()

    def wait_for_guests(self, timeout: float) -> None:
        """Nobody uses a store of this node."""

    def succeeded(self) -> Mapping[int, float]:
        """When successful workers ended, by global rank."""
        return self._ended

    def streams(self) -> Streams | None:
        """Output is not simulated."""
        return None

    def log_files(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        """No files."""
        return {}, {}


class SimulatedStop:
    """A stop of workers: it ends by itself, or at once when it is escalated.

    Args:
        hub: has the clock.
        takes: seconds.
        finish: called at its end.
    """

    def __init__(self, hub: Hub, takes: float, finish: Callable[[], None]) -> None:
        self._hub = hub
        self._until = hub.now + takes
        self._finish = finish
        self._is_over = False

    def step(self) -> float | None:
        """Return the seconds until the next step; None at the end."""
        left = self._until - self._hub.now
        if left > 1e-9:
            return left
        if not self._is_over:
            self._is_over = True
            self._finish()
        return None

    def escalate(self) -> None:
        """Send SIGKILL."""
        self._until = self._hub.now
