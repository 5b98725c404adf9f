"""Workers that are programs; the name of the context is torchrun's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plaunch.process.binding import while_bound
from plaunch.process.contexts.handle import ChildProcess
from plaunch.process.contexts.handler import SubprocessHandler, get_subprocess_handler
from plaunch.process.contexts.supervised import SupervisedContext
from plaunch.process.failures.failure import ProcessFailure
from plaunch.process.stopping.reaping.job_tag import JOBS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch.process.contexts.context import ProcessExit
    from plaunch.process.contexts.handle import WorkerProcess
    from plaunch.process.streams.logs import LogsSpecs


class SubprocessContext(SupervisedContext):
    """Runs the same program once per local rank. Its return values are all None.

    All arguments are those of `PContext`.
    """

    def __init__(
        self,
        name: str,
        entrypoint: str,
        args: Mapping[int, Any],
        envs: Mapping[int, Mapping[str, Any]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: object = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            name,
            entrypoint,
            args,
            envs,
            logs_specs,
            log_line_prefixes,
            duplicate_stdout_filters,
            duplicate_stderr_filters,
            numa_options=numa_options,
            **kwargs,
        )
        self.subprocess_handlers: dict[int, SubprocessHandler] = {}

    def _start_worker(
        self, local_rank: int, stdout: int | None, stderr: int | None
    ) -> WorkerProcess:
        with while_bound(self._bindings.get(local_rank)):
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
            log_files=self._log_files(seen.local_rank),
        )

    def _collect_return_values(self) -> dict[int, Any]:
        return dict.fromkeys(range(self.nprocs))


def _nothing() -> None:
    """A program leaves nothing to close in the launcher."""
