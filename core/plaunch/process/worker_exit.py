"""What comes back from a worker: how it ended, and its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from plaunch.process.children import ExitWatch
    from plaunch.process.failure import ProcessFailure


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


class WorkerResults:
    """The results of programs, which send nothing; a subclass receives those of functions."""

    def begin(self, nprocs: int, watch: ExitWatch) -> None:
        """Prepare for `nprocs` workers, whose messages must wake `watch`.

        Raises:
            OSError: the system refuses.
        """

    def receive(self) -> None:
        """Read what the workers have sent so far; called repeatedly, and returns quickly."""

    def take(self, local_rank: int, exitcode: int) -> str:
        """Read the rest of what a worker sent that has ended by itself.

        Returns:
            Why the worker has failed although its exit code is 0; empty if it has not.
        """
        del local_rank, exitcode
        return ""

    def has_failed(self, local_rank: int) -> bool:
        """Whether a running worker has sent an invalid result."""
        del local_rank
        return False

    def has_returned(self, local_rank: int) -> bool:
        """Whether a running worker has sent its result, and only has to exit."""
        del local_rank
        return False

    def values(self, nprocs: int) -> dict[int, Any]:
        """The return values by local rank; called once all workers have succeeded."""
        return dict.fromkeys(range(nprocs))

    def close(self) -> None:
        """Release everything; called when all workers are gone."""


Returns = WorkerResults  # the old name, until the next version
