"""Workers that are programs; the name of the context is torchrun's."""

from __future__ import annotations

import functools

from plaunch.process.binding import while_bound
from plaunch.process.contexts.handler import SubprocessHandler, get_subprocess_handler
from plaunch.process.contexts.supervised import SupervisedContext
from plaunch.process.kernel.handle import ProcessHandle
from plaunch.process.stopping.reaping.job_tag import JOBS_VARIABLE


class SubprocessContext(SupervisedContext):
    """Runs the same program once per local rank. Its return values are all None.

    All arguments are those of `PContext`.
    """

    @functools.cached_property
    def subprocess_handlers(self) -> dict[int, SubprocessHandler]:
        """The programs by local rank, those that were started."""
        return {}

    def _start_worker(
        self, local_rank: int, stdout: int | None, stderr: int | None
    ) -> ProcessHandle:
        with while_bound(self._bindings.get(local_rank)):
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
