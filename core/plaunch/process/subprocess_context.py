"""Workers that are programs; the name of the context is torchrun's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plaunch.process.child import ChildProcess
from plaunch.process.failures import ProcessFailure
from plaunch.process.handler import SubprocessHandler, get_subprocess_handler
from plaunch.process.reaping.marker import JOBS_VARIABLE
from plaunch.process.supervised import SupervisedContext

if TYPE_CHECKING:
    from plaunch.process.child import WorkerProcess
    from plaunch.process.context import ProcessExit


class SubprocessContext(SupervisedContext):
    """Runs the same program once per local rank. Its return values are all None."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.subprocess_handlers: dict[int, SubprocessHandler] = {}

    def _start_worker(
        self, local_rank: int, stdout: int | None, stderr: int | None
    ) -> WorkerProcess:
        handler = get_subprocess_handler(
            str(self.entrypoint),
            self.args[local_rank],
            {**self.envs[local_rank], JOBS_VARIABLE: self._words(local_rank)},
            stdout,
            stderr,
            local_rank,
        )
        self.subprocess_handlers[local_rank] = handler
        return ChildProcess(handler.proc, release=_nothing)

    def _judge(self, seen: ProcessExit) -> ProcessFailure | None:
        if seen.exitcode == 0:
            return None
        return ProcessFailure(
            local_rank=seen.local_rank,
            pid=seen.pid,
            exitcode=seen.exitcode,
            error_file=self.error_files.get(seen.local_rank, ""),
        )

    def _collect_return_values(self) -> dict[int, Any]:
        return dict.fromkeys(range(self.nprocs))


def _nothing() -> None:
    """A program leaves nothing to close in the launcher."""
