"""The workers of a node, and a stop of them, for the agent's loop."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from plaunch import parts
from plaunch.agent.states import AgentEvent, StopFailed, StopSucceeded
from plaunch.errors import UnkillableWorkerError
from plaunch.process.kernel.holds import HoldWatch

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection, Mapping, Sequence

    from plaunch.agent.requests import Hang
    from plaunch.agent.worker import RunResult, WorkerGroup
    from plaunch.process.kernel.holds import Held
    from plaunch.process.stopping.stop import Stop
    from plaunch.process.streams.api import Streams

logger = logging.getLogger("plaunch")


class StopInProgress:
    """The stop in progress, if there is one, for the loop that drives it.

    Args:
        at_end: called when a stop is over, also if a worker survives SIGKILL; an
            `UnkillableWorkerError` of it replaces that of the stop. A step that is interrupted is
            not the end: another one follows.
    """

    def __init__(self, at_end: Callable[[], None]) -> None:
        self._at_end = at_end
        self._stop: Stop | None = None
        self.delay = 0.0  # seconds until it has something to do
        self.error: BaseException | None = None  # why the last one failed

    def begin(self, begin: Callable[[], Stop | None]) -> AgentEvent | None:
        """Begin a stop; the event of its end, if it is over at once."""
        try:
            self._stop = begin()
        except UnkillableWorkerError as error:
            self.error = error
            return StopFailed()
        return self.step()

    def step(self) -> AgentEvent | None:
        """Take the next step; the event of the end, if it was the last one."""
        if self._stop is None:
            return StopSucceeded()
        error: UnkillableWorkerError | None = None
        try:
            delay = self._stop.step()
        except UnkillableWorkerError as found:
            delay, error = None, found
        if delay is not None:
            self.delay = delay
            return None
        try:
            self._at_end()
        except UnkillableWorkerError as found:
            error = found
        self._stop = None
        if error is None:
            return StopSucceeded()
        self.error = error
        return StopFailed()

    def is_in_progress(self) -> bool:
        """Whether a stop has begun and is not over."""
        return self._stop is not None

    def escalate(self) -> None:
        """Skip the grace."""
        if self._stop is not None:
            self._stop.escalate()


class TemplateMethods(Protocol):
    """What every agent defines, with torchrun's names; see `SimpleElasticAgent`."""

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]: ...

    def _stop_workers(self, worker_group: WorkerGroup) -> None: ...

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult: ...


class Workers:
    """Workers that have torchrun's methods only.

    They are asked how they are once per monitor interval, and a stop is one call, which may block.
    An agent that can do better has a subclass of this.

    Args:
        agent: has the methods; looked up at each call, as somebody may replace those of one agent.
        group: the workers, which change from round to round.
    """

    is_final = False  # whether no restart is to follow their failure

    def __init__(self, agent: TemplateMethods, group: WorkerGroup) -> None:
        self.agent = agent
        self.group = group
        self.holds = HoldWatch()  # of this round's

    def start(self) -> None:
        """Start them, and know their ids."""
        self.holds = HoldWatch()
        ids = self.agent._start_workers(self.group)
        for worker in self.group.workers:
            worker.id = ids.get(worker.local_rank)

    def preparation(self) -> Callable[[], Mapping[str, float]] | None:
        """What must have returned before `start`; it may take time, and says what took how long."""
        return None

    def forked(self) -> Collection[int]:
        """The local ranks of those that were not executed afresh."""
        return ()

    def look(self) -> RunResult:
        """How they are, without waiting."""
        return self.agent._monitor_workers(self.group)

    def exit_fds(self) -> Sequence[int] | None:
        """Descriptors that become readable when a worker ends; None: ask every interval."""
        return None

    def exits_suffice(self) -> bool:
        """Whether `look` finds nothing that a descriptor of `exit_fds` does not tell.

        It is then called less often than once per monitor interval.
        """
        return False

    def due(self) -> float | None:
        """Seconds until `look` must be called in any case, or None."""
        return None

    def tend(self) -> None:
        """Provide what other nodes' workers need of this node, whose own workers have ended."""

    def are_of_use(self) -> bool:
        """Whether workers that failed are the job's concern, and can be started again.

        False if it is this host that has failed: the job is then better off without it.
        """
        return True

    def stop_in_steps(self) -> bool:
        """Whether `begin_stop` returns at once, and all that is known of a failure comes later."""
        return False

    def begin_stop(self, signum: signal.Signals) -> Stop | None:
        """Begin to stop them with `signum`; the loop takes the steps of what is returned.

        None if it is done: here, where all that is known is `_stop_workers`, which may block.
        """
        del signum
        self.agent._stop_workers(self.group)
        return None

    def begin_clearing(self) -> Stop | None:
        """The same for what workers that have all succeeded left behind."""
        return None

    def end_stop(self) -> None:
        """Look at them once more, when all steps of a stop were taken.

        Raises:
            UnkillableWorkerError: some were given up.
        """

    def stopped_result(self) -> RunResult | None:
        """How they failed, as far as it is known; None if no more than before."""
        return None

    def streams(self) -> Streams | None:
        """What carries their output, for those whose output may have to wait for a console."""
        return None

    def pids(self) -> dict[int, int]:
        """The process ids of those that run, by global rank."""
        ids = {worker.global_rank: worker.id for worker in self.group.workers}
        return {rank: pid for rank, pid in ids.items() if isinstance(pid, int)}

    def held(self, pids: Mapping[int, int]) -> dict[int, Held]:
        """What holds which of these processes now, and since when, by global rank; thread-safe."""
        found = self.holds.look(pids.values())
        return {rank: found[pid] for rank, pid in pids.items() if pid in found}

    def succeeded(self) -> Mapping[int, float]:
        """When those ended that have succeeded, by global rank; empty if that is not known."""
        return {}

    def log_files(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        """The files with their standard output and error, by local rank; empty for none."""
        return {}, {}

    def signal(
        self,
        signum: signal.Signals,
        ranks: Collection[int] | None = None,
        reason: str = "",
    ) -> None:
        """Send a signal to those that run, or to some global ranks of them; they go on."""
        del ranks, reason
        logger.warning("%s is not passed on: this agent has no way to do so", signum.name)

    def note_hang(self, hang: Hang) -> None:
        """Let `look` find that the round has failed, since its workers hang."""
        del hang
        logger.warning("the round goes on: this agent has no way to end it because of a hang")

    def wait_for_peers(self, timeout: float) -> None:
        """Wait for the other nodes of the round to finish; runs in a background thread.

        Only if the round has a store, which may be lost when this node leaves.
        """
        nodes = self.group.group_world_size or 1
        store = self.group.agent_store
        if store is not None and nodes > 1:
            parts.load_part(parts.WAIT_THROUGH_STORE)(store, nodes, timeout)
