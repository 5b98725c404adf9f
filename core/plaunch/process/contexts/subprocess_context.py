"""Workers that are programs; the name of the context is torchrun's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plaunch.process.contexts.handler import SubprocessHandler, get_subprocess_handler
from plaunch.process.contexts.supervised import SupervisedContext
from plaunch.process.kernel.handle import ProcessHandle
from plaunch.process.stopping.reaping.job_tag import JOBS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        filters = (duplicate_stdout_filters, duplicate_stderr_filters)
        kwargs["numa_options"] = numa_options
        super().__init__(
            name, entrypoint, args, envs, logs_specs, log_line_prefixes, *filters, **kwargs
        )
        self.subprocess_handlers: dict[int, SubprocessHandler] = {}

    def _start_worker(
        self, local_rank: int, stdout: int | None, stderr: int | None
    ) -> ProcessHandle:
        with self._bound(local_rank):
            handler = get_subprocess_handler(
                str(self.entrypoint),
                self.args[local_rank],
                {**self.envs[local_rank], JOBS_VARIABLE: self._tags(local_rank)},
                stdout,
                stderr,
                local_rank,
            )
        self.subprocess_handlers[local_rank] = handler
        return ProcessHandle(handler.proc)
