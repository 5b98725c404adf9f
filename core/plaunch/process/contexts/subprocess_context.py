"""Workers that are programs; the name of the context is torchrun's."""

from __future__ import annotations

import functools

from plaunch.process.contexts.handler import SubprocessHandler, get_subprocess_handler
from plaunch.process.contexts.supervised import SupervisedContext
from plaunch.process.kernel.handle import ProcessHandle


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
        with self._bound(local_rank):
            handler = get_subprocess_handler(
                str(self.entrypoint),
                self.args[local_rank],
                {**self.envs[local_rank], **self._tags(local_rank)},
                stdout,
                stderr,
                local_rank,
            )
        self.subprocess_handlers[local_rank] = handler
        return ProcessHandle(handler.proc)
