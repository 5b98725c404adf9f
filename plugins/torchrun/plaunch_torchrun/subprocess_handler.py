"""Starting one program as a worker, without a context; the names are torchrun's."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

from plaunch.process import default_binder, start_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class SubprocessHandler:
    """A running program, as the leader of its own session, with the launcher's environment.

    Args:
        entrypoint: the program; without a slash it is searched on the PATH of its environment.
        args: its arguments; they are converted to text.
        env: variables to add to the launcher's environment; values are converted to text.
        stdout: a path to overwrite, an open descriptor, or None for the launcher's own.
        stderr: the same for stderr.
        local_rank_id: the local rank.
        numa_options: how to bind the program to CPUs near the device of its local rank; None for
            no binding.

    Raises:
        WorkerStartError: the program cannot be started; see `plaunch.process.start_program`.
        UsageError: an argument or variable contains a NUL character, or the binding is not
            possible.
    """

    def __init__(
        self,
        entrypoint: str,
        args: Sequence[Any],
        env: Mapping[str, Any],
        stdout: str | int | None,
        stderr: str | int | None,
        local_rank_id: int,
        numa_options: object = None,
    ) -> None:
        self.local_rank_id = local_rank_id
        binder = default_binder(numa_options)
        binding = None if binder is None else binder.plan(local_rank_id + 1).get(local_rank_id)
        bound = contextlib.nullcontext() if binding is None else binding.applied()
        with bound, _opened(stdout) as out, _opened(stderr) as err:
            self.proc = start_program(entrypoint, args, env, out, err, local_rank_id)

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send `death_sig` (SIGTERM if None) to the process group of the program; does not wait.

        Does nothing if the program has been waited for.
        """
        if self.proc.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # the group has ended
                os.killpg(self.proc.pid, death_sig or signal.SIGTERM)


def get_subprocess_handler(
    entrypoint: str,
    args: Sequence[Any],
    env: Mapping[str, Any],
    stdout: str | int | None,
    stderr: str | int | None,
    local_rank_id: int,
    numa_options: object = None,
) -> SubprocessHandler:
    """Start a program."""
    return SubprocessHandler(entrypoint, args, env, stdout, stderr, local_rank_id, numa_options)


@contextlib.contextmanager
def _opened(std: str | int | None) -> Iterator[int | None]:
    """Open the descriptor for a stream argument; a path is closed after the program has started."""
    if isinstance(std, str) and std:
        with open(std, "wb") as file:
            yield file.fileno()
    else:
        yield std if isinstance(std, int) and std else None
