"""A starter of workers: `WORKER_WRAPPER="numactl --localalloc"` runs each worker under a program.

The program must execute the command that follows its own arguments, in its own process: `nice -n
5`, `taskset -c 0-7`, `chrt --batch 0`, or a tracer.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from typing import TYPE_CHECKING

from plaunch.plugin import hookimpl
from plaunch.process import Starter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch.plugin import PluginContext
    from plaunch.process import Binding


class WrappingStarter(Starter):
    """Puts a program and its arguments in front of every worker's command."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def __str__(self) -> str:
        return shlex.join([*self._words, "..."])

    def start(
        self,
        local_rank: int,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: int | None,
        stderr: int | None,
        pass_fds: Sequence[int] = (),
        binding: Binding | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start the wrapper, which executes the command."""
        with contextlib.nullcontext() if binding is None else binding.applied():
            return subprocess.Popen(
                [*self._words, *command],
                env=env,
                stdout=stdout,
                stderr=stderr,
                pass_fds=pass_fds,
                start_new_session=True,
            )


@hookimpl
def plaunch_worker_starter(context: PluginContext) -> WrappingStarter | None:
    """Wrap the workers if the variable WORKER_WRAPPER is set."""
    del context
    words = shlex.split(os.environ.get("WORKER_WRAPPER", ""))
    return WrappingStarter(words) if words else None
