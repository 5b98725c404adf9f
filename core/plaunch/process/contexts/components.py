"""What contexts are made of: what an agent shares with them, and what workers send back."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from plaunch.process.kernel.holds import HoldWatch
from plaunch.process.worker_exit import unranked_worker
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch.process.kernel.watch import ExitWatch
    from plaunch.process.starting import Starter
    from plaunch.process.stopping.reaper import Reaper
    from plaunch.process.stopping.stop_sequence import StopStep
    from plaunch.process.streams.api import OutputStats
    from plaunch.process.worker_exit import WorkerExit, WorkerInfo


class WorkerObserver(Protocol):
    """Is notified of exits and stops, once all workers of a context have been started.

    Called on the thread that uses the context. The methods must neither raise nor block.
    """

    def worker_ended(self, exit: WorkerExit) -> None:
        """A worker has just ended. The last lines of its failure are not known yet."""

    def stop_stepped(self, step: StopStep) -> None:
        """The stop sequence has taken a step."""


@plain_dataclass
class ContextComponents(Value):
    """The objects that an agent gives to each of its contexts.

    Args:
        reaper: ends the orphans of the workers; the agent closes it. By default, the context
            creates and closes its own.
        stats: counts the output of all contexts. Its owner waits for a slow console at the end
            of the run; without one, `close` does.
        starter: starts the processes of workers that are not forked from this process.
        private_fds: descriptors of this process that a forked worker must close.
        observer: is notified of exits and stops.
        holds: records since when workers have been suspended.
        worker_info: what is known of the worker with this local rank and pid.
    """

    reaper: Reaper | None = None
    stats: OutputStats | None = None
    starter: Starter | None = None
    private_fds: Sequence[int] = ()
    observer: WorkerObserver | None = None
    holds: HoldWatch = field(default_factory=HoldWatch)
    worker_info: Callable[[int, int], WorkerInfo] = unranked_worker


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
