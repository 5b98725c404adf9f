"""The contract of what starts the processes of workers, where they are not executed afresh."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from plaunch.process.binding import Binding
    from plaunch.process.kernel.handle import Popen


class Starter(Protocol):
    """Starts the processes of a launch's workers; `begin` is called first and `close` last.

    For each round `wait` is called, then `prepare`, then `start` for each worker. Only `wait` may
    take time. A round may end before its workers are started. `str` says in one line how workers
    are started, for `--dry-run`, which calls no method.
    """

    def begin(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Get ready, in the background; the node has not joined the others yet.

        Args:
            command: what the first worker is started with, before macros are replaced; empty if
                workers are forked from the launcher, and so never asked for.
            environ: the variables of the workers, as far as they are known.
        """

    def wait(self) -> Mapping[str, float]:
        """Wait until workers can be started, within a bound; what took time, in seconds by name.

        Called on a thread of its own once a round has formed, maybe while `close` is.
        """

    def prepare(self, envs: Mapping[int, Mapping[str, str]]) -> None:
        """Know the whole environments of a round's workers, by local rank."""

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
        """Start a worker, as `subprocess.Popen` does in a session of its own.

        It has the arguments, environment and descriptors that are given here, and no others. Its
        working folder and umask are those that this process has now, its limits and signal
        dispositions those that it has had since `begin`.

        Args:
            local_rank: the worker's.
            command: the program and its arguments.
            env: its whole environment.
            stdout: a descriptor, or None for the launcher's own.
            stderr: the same for stderr.
            pass_fds: more descriptors, which keep their numbers.
            binding: what it is bound to before it does anything.

        Returns:
            A child of this process, which only its own `poll` reaps; None lets plaunch execute
            the command itself.

        Raises:
            WorkerStartError: the binding cannot be had; there is no worker then.
            OSError: the system does not execute the program.
        """

    def fds(self) -> Collection[int]:
        """Descriptors that a fork of the launcher must not keep."""

    def close(self) -> None:
        """Release everything, so that no process, thread or descriptor is left; workers go on.

        A `wait` that goes on ends. May be called more than once, and without `begin`.
        """


def popen_by(
    starter: Starter | None, local_rank: int, binding: Binding | None, started: set[int]
) -> Callable[..., Popen]:
    """What starts a worker's program, from the arguments of `subprocess.Popen`.

    Args:
        starter: starts it, if it does; else it is executed.
        local_rank: the worker's.
        binding: what it is bound to.
        started: gets the local rank if the starter has started it.
    """

    def popen(command: Sequence[str], start_new_session: bool = True, **options: Any) -> Popen:
        if starter is not None:
            worker = starter.start(local_rank, command, binding=binding, **options)
            if worker is not None:
                started.add(local_rank)
                return worker
        import subprocess  # workers that are forked from here need none

        with nullcontext() if binding is None else binding.applied():
            return subprocess.Popen(command, start_new_session=start_new_session, **options)

    return popen
