"""The contract of starters, which start workers in another way than by executing a program."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from plaunch.process.binding import Binding
    from plaunch.process.kernel.handle import Popen

START_METHODS = ("spawn", "fork", "forkserver")  # of functions


class Starter(Protocol):
    """Starts the processes of a launch's workers; `begin` is called first and `close` last.

    In each round `wait` is called, then `prepare`, then `start` for each worker. Only `wait` may
    block. A round may end before its workers are started. `str` of a starter says in one line how
    it starts workers, for `--dry-run`, which calls no method.
    """

    def begin(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Begin to prepare in the background; the node has not joined the others yet.

        Args:
            command: the command of the first worker, before macros are replaced; empty if workers
                are forked from the launcher, which does not call `start`.
            environ: the variables of the workers, as far as they are known.
        """

    def wait(self) -> Mapping[str, float]:
        """Wait until workers can be started, within a bound.

        Called on its own thread once a round has formed, possibly at the same time as `close`.

        Returns:
            What took time: seconds by name.
        """

    def prepare(self, envs: Mapping[int, Mapping[str, str]]) -> None:
        """Receive the complete environments of a round's workers, by local rank."""

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
    ) -> Popen | None:
        """Start a worker as leader of a new session, as `subprocess.Popen` does.

        The worker gets the arguments, environment and descriptors that are given here, and no
        others. It has the current working folder and umask of this process, and the limits and
        signal dispositions that this process had at `begin`.

        Args:
            local_rank: the local rank of the worker.
            command: the program and its arguments.
            env: its complete environment.
            stdout: a descriptor, or None for the launcher's own.
            stderr: the same for stderr.
            pass_fds: more descriptors, which keep their numbers.
            binding: binds the worker before it does anything.

        Returns:
            A child of this process, which only its own `poll` reaps; None makes plaunch execute
            the command itself.

        Raises:
            WorkerStartError: the worker cannot be bound, and was not started.
            OSError: the system does not execute the program.
        """

    def fds(self) -> Collection[int]:
        """Descriptors that a fork of the launcher must close."""

    def close(self) -> None:
        """Release every process, thread and descriptor; workers keep running.

        Ends a `wait` in progress. May be called more than once, and without `begin`.
        """


def popen_by(
    starter: Starter | None, local_rank: int, binding: Binding | None, started: set[int]
) -> Callable[..., Popen]:
    """What starts a worker's program, from the arguments of `subprocess.Popen`.

    Args:
        starter: starts it; the program is executed if there is no starter, or it returns None.
        local_rank: the local rank of the worker.
        binding: binds the worker.
        started: the local rank is added if the starter has started the worker.
    """

    def popen(command: Sequence[str], start_new_session: bool = True, **options: Any) -> Popen:
        if starter is not None:
            worker = starter.start(local_rank, command, binding=binding, **options)
            if worker is not None:
                started.add(local_rank)
                return worker
        import subprocess  # not needed where all workers are forked

        with nullcontext() if binding is None else binding.applied():
            return subprocess.Popen(command, start_new_session=start_new_session, **options)

    return popen
