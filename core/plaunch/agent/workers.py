"""The workers of a node, and a stop of them, for the agent's loop."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from plaunch import parts
from plaunch.agent.states import AgentEvent, StopFailed, StopSucceeded
from plaunch.errors import UnkillableWorkerError
from plaunch.process.held import HoldWatch

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection, Mapping, Sequence

    from plaunch.agent.requests import Hang
    from plaunch.agent.worker import RunResult, WorkerGroup
    from plaunch.process.held import Held
    from plaunch.process.stopping.stop import Stop
    from plaunch.process.streams import Streams

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

    `look` is called once per monitor interval, and a stop is one call, which may block. An agent
    that can do better has a subclass of this.

    Args:
        agent: has the methods; looked up at each call, as a program may replace those of one agent.
        group: the workers, which change from round to round.
    """

    is_final = False  # whether no restart may follow their failure

    def __init__(self, agent: TemplateMethods, group: WorkerGroup) -> None:
        self.agent = agent
        self.group = group
        self.holds = HoldWatch()  # of the workers of this round

    def start(self) -> None:
        """Start them, and record their ids."""
        self.holds = HoldWatch()
        ids = self.agent._start_workers(self.group)
        for worker in self.group.workers:
            worker.id = ids.get(worker.local_rank)

    def preparation(self) -> Callable[[], Mapping[str, float]] | None:
        """What must return before `start`, if anything; may block, and returns seconds by name."""
        return None

    def forked(self) -> Collection[int]:
        """The local ranks of workers that were forked by a starter."""
        return ()

    def look(self) -> RunResult:
        """The state of the workers, without waiting."""
        return self.agent._monitor_workers(self.group)

    def exit_fds(self) -> Sequence[int] | None:
        """Descriptors that become readable at an exit; None if `look` must poll for exits."""
        return None

    def exits_suffice(self) -> bool:
        """Whether everything that `look` finds makes a descriptor of `exit_fds` readable.

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

        False if the host has failed: the job should then continue without it.
        """
        return True

    def stop_in_steps(self) -> bool:
        """Whether `begin_stop` returns at once, and failures are complete only later."""
        return False

    def begin_stop(self, signum: signal.Signals) -> Stop | None:
        """Begin to stop them with `signum`; the loop takes the steps of what is returned.

        None if the stop is over: here, `_stop_workers` is one call, which may block.
        """
        del signum
        self.agent._stop_workers(self.group)
        return None

    def begin_clearing(self) -> Stop | None:
        """The same for processes that workers left behind when all of them had succeeded."""
        return None

    def end_stop(self) -> None:
        """Update the results after the last step of a stop.

        Raises:
            UnkillableWorkerError: some workers have not ended.
        """

    def stopped_result(self) -> RunResult | None:
        """The result so far, with failures; None if it is not known."""
        return None

    def streams(self) -> Streams | None:
        """The streams with their output, which may be slow to reach a console; None if unknown."""
        return None

    def pids(self) -> dict[int, int]:
        """The process ids of the running workers, by global rank."""
        ids = {worker.global_rank: worker.id for worker in self.group.workers}
        return {rank: pid for rank, pid in ids.items() if isinstance(pid, int)}

    def held(self, pids: Mapping[int, int]) -> dict[int, Held]:
        """What holds which of these processes now, and since when, by global rank; thread-safe."""
        found = self.holds.look(pids.values())
        return {rank: found[pid] for rank, pid in pids.items() if pid in found}

    def succeeded(self) -> Mapping[int, float]:
        """When successful workers ended, by global rank; empty if unknown."""
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
        """Send a signal to the running workers, or some global ranks, without stopping them."""
        del ranks, reason
        logger.warning("%s is not passed on: this agent has no way to do so", signum.name)

    def note_hang(self, hang: Hang) -> None:
        """Make the next `look` fail the round, because its workers hang."""
        del hang
        logger.warning("the round goes on: this agent has no way to end it because of a hang")

    def wait_for_peers(self, timeout: float) -> None:
        """Wait for the other nodes of the round to finish; runs in a background thread.

        Returns at once if the round has no store. The store may be lost when this node leaves.
        """
        nodes = self.group.group_world_size or 1
        store = self.group.agent_store
        if store is not None and nodes > 1:
            parts.load_part(parts.WAIT_THROUGH_STORE)(store, nodes, timeout)
