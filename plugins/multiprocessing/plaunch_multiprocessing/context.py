"""The context for workers that are functions, with torchrun's name."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from plaunch.errors import UsageError
from plaunch.process import ProcessHandle, SupervisedContext

from plaunch_multiprocessing.payload import Call, InheritedFd
from plaunch_multiprocessing.return_values import ReturnValues
from plaunch_multiprocessing.worker import Task, WorkerSetup, run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.process import LogsSpecs


class MultiprocessContext(SupervisedContext):
    """Runs the same function once per local rank, each time in a new process.

    Exceptions are written to the error file, as by `record`. Return values may have any size, but
    must be picklable: they are sent to the launcher.

    Args:
        start_method: `spawn`, `fork` or `forkserver`, with multiprocessing's meaning. A spawned
            worker has its environment before it imports anything. A worker of multiprocessing's
            fork server has it before it imports the function's module. If the components have a
            starter, it starts workers of `forkserver` like those of `spawn`, and multiprocessing's
            server is not used.

    All other arguments, and their order, are those of `SubprocessContext`.

    Raises:
        UsageError: `start_method` is unknown, or `entrypoint` is not callable.
    """

    @staticmethod
    def worker_command() -> list[str]:
        """The command of a spawned worker, for a starter; see `Starter.begin`."""
        from plaunch_multiprocessing.spawned import spawn_command

        return spawn_command()

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any],
        args: Mapping[int, Any],
        envs: Mapping[int, Mapping[str, Any]],
        start_method: str,
        logs_specs: LogsSpecs,
        *others: Any,
        **kwargs: Any,
    ) -> None:
        methods = sorted(_multiprocessing().get_all_start_methods())
        if start_method not in methods:
            raise UsageError(
                f"start method {start_method!r} is unknown. Choices: {', '.join(methods)}"
            )
        if not callable(entrypoint):
            raise UsageError(
                f"entrypoint is {entrypoint!r}; give a function or the path of a program"
            )
        self._values = ReturnValues()
        kwargs["results"] = self._values
        super().__init__(name, entrypoint, args, envs, logs_specs, *others, **kwargs)
        self.start_method = start_method
        # With preloaded modules, plaunch's own fork server forks the program that `spawn` starts.
        is_preloaded = start_method == "forkserver" and self._components.starter is not None
        self._method = "spawn" if is_preloaded else start_method
        self._has_forked = self._method != "spawn"
        self._function = entrypoint
        self._stream_fds: list[int] = []

    def _start_worker(
        self, local_rank: int, stdout: int | None, stderr: int | None
    ) -> ProcessHandle:
        pipe = self._values.open_pipe(local_rank)
        call = Call(self._function, self.args[local_rank])
        setup = self._setup(local_rank, stdout, stderr)
        task = Task(setup, call, InheritedFd(pipe.child_fd))
        if self._values.gate is not None:
            task.siblings = InheritedFd(self._values.gate.child_fd)
        process = (
            _multiprocessing()
            .get_context(self.start_method)  # the default for processes that the function starts
            .Process(target=run, args=(task,), name=f"{self.name}{local_rank}", daemon=False)
        )
        try:
            worker = self._start_process(process, task, stdout, stderr)
        finally:
            call.close()
            pipe.close_child_end()
        self._values.expect(local_rank)
        return worker

    def _setup(self, local_rank: int, stdout: int | None, stderr: int | None) -> WorkerSetup:
        if self._method == "spawn":
            return WorkerSetup(local_rank)
        is_served = self._method == "forkserver"
        if is_served:  # the server was started earlier, with other streams
            stdout, stderr = _stream(stdout, 1), _stream(stderr, 2)
        guard_fd, fds = self._fork_fds()
        setup = WorkerSetup(
            local_rank, self._environment(local_rank), stdout, stderr, guard_fd=guard_fd
        )
        if not is_served:
            setup.close_fds = (*fds, *self._values.own_fds(), *self._stream_fds)
            self._stream_fds += [fd for fd in (stdout, stderr) if fd is not None]
        return setup

    def _start_process(
        self, process: Any, task: Task, stdout: int | None, stderr: int | None
    ) -> ProcessHandle:
        local_rank = task.setup.local_rank
        if self._method == "forkserver":
            from plaunch_multiprocessing.fork_server import fork_in_server  # only for forkserver

            task.send_fds()
            return fork_in_server(process, self._bindings.get(local_rank))
        if self._method == "spawn":
            from plaunch_multiprocessing.spawned import SpawnPopen

            env, popen = self._environment(local_rank), partial(self._popen, local_rank)
            spawned = SpawnPopen(process, env=env, stdout=stdout, stderr=stderr, popen=popen)
            return ProcessHandle(spawned, spawned.close)
        # The forked worker has the launcher's handlers until it resets them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        task.setup.signal_mask = frozenset(mask)
        try:
            with self._bound(local_rank):
                forked = process._Popen(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return ProcessHandle(forked, forked.close)


def _multiprocessing() -> Any:
    """Torch's multiprocessing if torch is loaded, so that arguments may contain tensors."""
    if "torch" in sys.modules:
        with contextlib.suppress(ImportError):  # another module named torch
            import torch.multiprocessing

            return torch.multiprocessing
    import multiprocessing  # only for function workers

    return multiprocessing


def _stream(fd: int | None, own: int) -> int | None:
    """The descriptor of a worker's stream: `fd`, or else the launcher's, if it is open."""
    if fd is None:
        try:
            os.fstat(own)
        except OSError:
            return None
        fd = own
    return fd
