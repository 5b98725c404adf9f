"""What the workers of one start send back: programs nothing, functions what they return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plaunch.process.kernel.watch import ExitWatch


class Returns:
    """Nothing, as of programs."""

    def begin(self, nprocs: int, watch: ExitWatch) -> None:
        """Get ready for so many workers; `watch` is to be woken by what they send.

        Raises:
            OSError: the system refuses.
        """

    def receive(self) -> None:
        """Take what the workers sent; called again and again, and never waits for long."""

    def take(self, local_rank: int, exitcode: int) -> str:
        """Take what a worker has sent that has ended by itself.

        Returns:
            What is wrong with it although its exit code is 0; empty if nothing is.
        """
        del local_rank, exitcode
        return ""

    def has_failed(self, local_rank: int) -> bool:
        """Whether a worker that still runs has sent something that is of no use."""
        del local_rank
        return False

    def has_returned(self, local_rank: int) -> bool:
        """Whether a worker that still runs has succeeded already, and only has to end."""
        del local_rank
        return False

    def values(self, nprocs: int) -> dict[int, Any]:
        """What was returned, by local rank; called once all workers have succeeded."""
        return dict.fromkeys(range(nprocs))

    def close(self) -> None:
        """Release everything; called when all workers are gone."""
