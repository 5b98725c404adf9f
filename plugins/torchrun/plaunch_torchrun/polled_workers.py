"""The workers of agents that define torchrun's methods themselves, for the agent's loop.

The loop waits for descriptors and takes a stop step by step. `_monitor_workers` must be polled, and
`_stop_workers` is one call, which may block.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from plaunch.agent import LocalElasticAgent, WorkerState
from plaunch.process import HeldProcesses

if TYPE_CHECKING:
    import signal
    from collections.abc import Collection, Mapping, Sequence

    from plaunch.agent import RunResult, WorkerGroup, Workers

logger = logging.getLogger("plaunch")


class TemplateMethods(Protocol):
    """What every agent defines, with torchrun's names; see `SimpleElasticAgent`."""

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]: ...

    def _stop_workers(self, worker_group: WorkerGroup) -> None: ...

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult: ...


class PolledWorkers:
    """Workers whose agent has its own `_monitor_workers` or `_stop_workers`.

    They are polled once per monitor interval, since `_monitor_workers` may check anything, and
    `_stop_workers` holds the loop. All else is left to the workers below.

    Args:
        agent: has the methods.
        group: the workers, which change from round to round.
        local: the workers, if the agent is a `LocalElasticAgent`.
    """

    def __init__(
        self, agent: TemplateMethods, group: WorkerGroup, local: Workers | None = None
    ) -> None:
        self._agent = agent
        self._group = group
        self._workers: Any = UnknownWorkers(agent, group) if local is None else local
        self._has_own_monitor = _is_own(agent, "_monitor_workers")
        self._has_own_stop = _is_own(agent, "_stop_workers")
        self._is_running = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workers, name)

    @property
    def settle_time(self) -> float:
        """As of `Workers`; 0 if the report of a failure would have to wait for a blocking stop."""
        return 0.0 if self._has_own_stop else self._workers.settle_time

    def start(self) -> None:
        """Start the workers of a round."""
        self._workers.start()
        self._is_running = True

    def check(self) -> RunResult:
        """Return the state of the workers, as `_monitor_workers` returns it."""
        result: RunResult = self._workers.check()
        self._is_running = result.state is not WorkerState.SUCCEEDED
        return result

    def due(self) -> float | None:
        """Return at most the monitor interval while workers run."""
        due: float | None = self._workers.due()
        if not (self._has_own_monitor and self._is_running):
            return due
        interval = self._group.spec.monitor_interval
        return interval if due is None else min(interval, due)

    def begin_stop(self, signum: signal.Signals) -> object:
        """Stop the workers; returns None when they are gone, or the stop in progress."""
        self._is_running = False
        if not self._has_own_stop:
            return self._workers.begin_stop(signum)
        self._agent._stop_workers(self._group)
        return None


def _is_own(agent: TemplateMethods, name: str) -> bool:
    return getattr(type(agent), name) is not getattr(LocalElasticAgent, name)


class UnknownWorkers:
    """Workers of which only the ids are known that `_start_workers` returns.

    Args:
        agent: has the methods.
        group: the workers.
    """

    is_final = False
    settle_time = 0.0

    def __init__(self, agent: TemplateMethods, group: WorkerGroup) -> None:
        self.group = group
        self.holds = HeldProcesses()
        self._agent = agent

    def preparation(self) -> None:
        """Return None: nothing is prepared."""

    def start(self) -> None:
        """Start the workers, and record their ids."""
        self.holds = HeldProcesses()
        ids = self._agent._start_workers(self.group)
        for worker in self.group.workers:
            worker.id = ids.get(worker.local_rank)

    def forked(self) -> Collection[int]:
        """Return no pids: a starter has forked none."""
        return ()

    def check(self) -> RunResult:
        """Return the state of the workers, as `_monitor_workers` returns it."""
        return self._agent._monitor_workers(self.group)

    def exit_fds(self) -> Sequence[int]:
        """Return none: `_monitor_workers` is polled."""
        return ()

    def due(self) -> None:
        """Return None: only the next poll is due."""

    def tend_store(self) -> None:
        """Do nothing: they host no store."""

    def begin_clearing(self) -> None:
        """Do nothing: orphans are not known."""

    def end_stop(self) -> None:
        """Do nothing: `_stop_workers` has raised its errors."""

    def stopped_result(self) -> None:
        """Return None: the exits are unknown."""

    def are_of_use(self) -> bool:
        """Return True: a failure of the host is not known."""
        return True

    def signal(
        self, signum: signal.Signals, ranks: Collection[int] | None = None, reason: str = ""
    ) -> None:
        """Log that the signal cannot be sent."""
        del ranks, reason
        logger.warning("%s is not passed on: this agent has no way to do so", signum.name)

    def note_hang(self, hang: object) -> None:
        """Log that the round cannot be ended."""
        del hang
        logger.warning("the round continues: this agent cannot end it because of a hang")

    def note_peers_ended(self, ago: float) -> None:
        """Note that most nodes have succeeded; where workers are is not known here."""

    def fail_raised(self) -> bool:
        """Return False: exceptions are known from exits only."""
        return False

    def wait_for_guests(self, timeout: float) -> None:
        """Return: they host no store."""

    def pids(self) -> dict[int, int]:
        """Return the ids that are process ids, by global rank."""
        ids = {worker.global_rank: worker.id for worker in self.group.workers}
        return {rank: pid for rank, pid in ids.items() if isinstance(pid, int)}

    def succeeded(self) -> Mapping[int, float]:
        """Return no ranks: the exits are unknown."""
        return {}

    def streams(self) -> None:
        """Return None: the streams are unknown."""

    def log_files(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        """Return no files: they are unknown."""
        return {}, {}
