"""What the workers of one start send back: programs nothing, functions their return values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plaunch.process.kernel.watch import ExitWatch


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
