"""Workers that are programs; the name of the context is torchrun's."""

from __future__ import annotations

from plaunch.process.contexts.programs import start_program
from plaunch.process.contexts.supervised import SupervisedContext
from plaunch.process.kernel.handle import ProcessHandle


class SubprocessContext(SupervisedContext):
    """Runs the same program once per local rank. Its return values are all None.

    All arguments are those of `PContext`.
    """

    def _start_worker(
        self, local_rank: int, stdout: int | None, stderr: int | None
    ) -> ProcessHandle:
        program, args = str(self.entrypoint), self.args[local_rank]
        env = {**self.envs[local_rank], **self._tags(local_rank)}
        popen = self._popen(local_rank)
        return ProcessHandle(start_program(program, args, env, stdout, stderr, local_rank, popen))
