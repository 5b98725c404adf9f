"""How a worker ended: one object, from the moment when its exit is seen to the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from plaunch.process.failures.failure import ProcessFailure


@plain_dataclass
class WorkerInfo(Value):
    """One worker as plugins see it. `pid` is None before it is started.

    Without an agent, only the local rank and the pid are known; the other numbers are -1.
    """

    local_rank: int
    global_rank: int
    role_rank: int
    world_size: int
    role_world_size: int
    pid: int | None = None


def unranked_worker(local_rank: int, pid: int) -> WorkerInfo:
    """A worker of a context without an agent."""
    return WorkerInfo(local_rank, -1, -1, -1, -1, pid)


@plain_dataclass
class WorkerExit(Value):
    """How one worker ended.

    Args:
        worker: the worker.
        exitcode: its exit code, negative for a signal (-9 for SIGKILL).
        stopped: whether the context or the agent ended it.
        failure: why it failed, if it did. Its last lines are complete after the stop that follows.
        timestamp: when its exit was seen, in seconds since the epoch.
    """

    worker: WorkerInfo
    exitcode: int
    stopped: bool
    failure: ProcessFailure | None = None
    timestamp: float = 0.0

    @property
    def local_rank(self) -> int:
        """The worker's local rank."""
        return self.worker.local_rank

    @property
    def pid(self) -> int | None:
        """The worker's process id."""
        return self.worker.pid

    @property
    def succeeded(self) -> bool:
        """Whether the worker ended by itself, and has not failed."""
        return not (self.stopped or self.exitcode or self.failure)


ProcessExit = WorkerExit  # the old name, until the next version
