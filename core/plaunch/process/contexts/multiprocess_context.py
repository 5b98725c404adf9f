"""Workers that are functions; the name of the context is torchrun's."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from plaunch.errors import PlaunchError, UsageError, WorkerStartError
from plaunch.process.binding import while_bound
from plaunch.process.contexts.handle import ChildProcess, ServedProcess
from plaunch.process.contexts.secrets import without_withheld
from plaunch.process.contexts.supervised import SupervisedContext
from plaunch.process.failures.failure import ProcessFailure
from plaunch.process.functions.results import ResultPipe
from plaunch.process.functions.siblings import SiblingGate
from plaunch.process.functions.worker import Call, InheritedFd, Task, run
from plaunch.process.stopping.reaping.job_tag import JOBS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.process.contexts.context import ProcessExit
    from plaunch.process.contexts.handle import WorkerProcess
    from plaunch.process.streams.logs import LogsSpecs

_RECEIVE_BUDGET = 0.05  # seconds that one look may spend on large values that are coming
_START_METHODS = ("fork", "forkserver", "spawn")


class MultiprocessContext(SupervisedContext):
    """Runs the same function once per local rank, in a process of its own.

    Exceptions are reported through the error file, as by `record`. The return value of every worker
    is sent to the launcher, whatever its size; it must be picklable.

    Args:
        start_method: `spawn`, `fork` or `forkserver`, with multiprocessing's meaning. A spawned
            worker has its environment before anything is imported, a worker of the fork server
            before the function's module is.

    All other arguments are those of `PContext`.

    Raises:
        UsageError: there is no such start method, or `entrypoint` cannot be called.
    """

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any],
        args: Mapping[int, Any],
        envs: Mapping[int, Mapping[str, Any]],
        start_method: str,
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: object = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        if start_method not in _START_METHODS:
            raise UsageError(
                f"start method {start_method!r} is unknown. Choices: {', '.join(_START_METHODS)}"
            )
        if not callable(entrypoint):
            raise UsageError(
                f"entrypoint is {entrypoint!r}; give a function or the path of a program"
            )
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
        self.start_method = start_method
        self._has_forked = start_method != "spawn"
        self._function = entrypoint
        self._pipes: dict[int, ResultPipe] = {}
        self._coming: dict[int, ResultPipe] = {}
        self._return_values: dict[int, Any] = {}
        self._taken: dict[int, str] = {}  # what is wrong with the values that were taken
        self._stream_fds: list[int] = []
        self._siblings: SiblingGate | None = None

    def _start_worker(
        self, local_rank: int, stdout: int | None, stderr: int | None
    ) -> WorkerProcess:
        pipe = self._pipes[local_rank] = ResultPipe()
        call = Call(self._function, self.args[local_rank])
        if self._siblings is None and self.nprocs > 1:
            self._siblings = SiblingGate()
        task = Task(local_rank, call, InheritedFd(pipe.child_fd))
        if self._siblings is not None:
            task.siblings = InheritedFd(self._siblings.child_fd)
        env = without_withheld({**os.environ, **self.envs[local_rank]})
        env[JOBS_VARIABLE] = self._words(local_rank)
        try:
            worker = self._start_process(task, env, stdout, stderr)
        except PlaunchError:
            raise
        except (OSError, EOFError) as error:
            from plaunch.capacity import explain  # noqa: PLC0415 - errors only

            raise WorkerStartError(
                f"cannot start local rank {local_rank} of {self.name!r}: {explain(error)}"
            ) from error
        finally:
            call.close()
            pipe.close_child_end()
        self._coming[local_rank] = pipe
        if self._watch is not None:
            self._watch.add_fd(pipe.fd)
        return worker

    def _start_process(
        self, task: Task, env: dict[str, str], stdout: int | None, stderr: int | None
    ) -> WorkerProcess:
        process = (
            _multiprocessing()
            .get_context(self.start_method)
            .Process(target=run, args=(task,), name=f"{self.name}{task.local_rank}", daemon=False)
        )
        if self.start_method == "spawn":
            from plaunch.process.functions.spawned import SpawnPopen  # noqa: PLC0415 - this start method only

            bound = while_bound(self._bindings.get(task.local_rank))
            spawned = SpawnPopen(process, env=env, stdout=stdout, stderr=stderr, bound=bound)
            return ChildProcess(spawned, spawned.close)
        task.env = env
        if self._job is not None and self._job.line_fd is not None:
            task.guard_line = InheritedFd(self._job.line_fd)
        if self.start_method == "forkserver":
            # The server is older than this start: it has other streams and another environment.
            task.stdout = _inherit(stdout, 1)
            task.stderr = _inherit(stderr, 2)
            served = self._serve(process, task.local_rank)
            return ServedProcess(served, served.close)
        task.stdout = None if stdout is None else InheritedFd(stdout)
        task.stderr = None if stderr is None else InheritedFd(stderr)
        told_through = -1 if task.guard_line is None else task.guard_line.fd
        task.close_fds = tuple(fd for fd in self._launcher_fds() if fd != told_through)
        self._stream_fds += [fd for fd in (stdout, stderr) if fd is not None]
        # Until the worker has its own handlers, the launcher's would take its signals.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        task.signal_mask = frozenset(mask)
        try:
            with while_bound(self._bindings.get(task.local_rank)):
                forked = process._Popen(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return ChildProcess(forked, forked.close)

    def _serve(self, process: Any, local_rank: int) -> Any:
        binding = self._bindings.get(local_rank)
        if binding is None:
            return process._Popen(process)
        from plaunch.process.functions.fork_server import BoundServedPopen  # noqa: PLC0415 - binding only

        return BoundServedPopen(process, binding)

    def _launcher_fds(self) -> tuple[int, ...]:
        """What a forked worker has of the launcher and of earlier workers, and must not keep."""
        fds = [*self._private_fds, *(pipe.fd for pipe in self._pipes.values())]
        if self._siblings is not None:
            fds.append(self._siblings.fd)
        if self._watch is not None:
            fds += self._watch.own_fds()
        if self._job is not None:
            fds += self._job.own_fds()
        return (*fds, *self._stream_fds)

    def _receive(self) -> None:
        deadline = time.monotonic() + _RECEIVE_BUDGET
        for rank, pipe in list(self._coming.items()):
            pipe.receive(deadline)
            if pipe.is_over:
                self._stop_receiving(rank)
                # A value that cannot be had is a failure, for which nobody else is waited for.
                if pipe.is_complete and self._take_value(rank, pipe):
                    self._let_siblings_go()
        if len(self._pipes) == self.nprocs and not self._coming:
            self._let_siblings_go()

    def _let_siblings_go(self) -> None:
        """Let workers end that have returned and wait for the others."""
        if self._siblings is not None:
            self._siblings.open()

    def _has_replied(self, local_rank: int) -> bool:
        """Whether a worker that still runs has failed already; also with a value that is none."""
        return bool(self._taken.get(local_rank)) or super()._has_replied(local_rank)

    def _has_returned(self, local_rank: int) -> bool:
        return self._taken.get(local_rank) == ""

    def _stop_receiving(self, local_rank: int) -> None:
        pipe = self._coming.pop(local_rank, None)
        if pipe is not None and self._watch is not None:
            self._watch.remove_fd(pipe.fd)

    def _judge(self, seen: ProcessExit) -> ProcessFailure | None:
        pipe = self._pipes[seen.local_rank]
        pipe.receive_rest()
        self._stop_receiving(seen.local_rank)
        # Whoever ends has not waited, or not in vain: there is a failure, or nobody to wait for.
        self._let_siblings_go()
        problem = ""
        if seen.exitcode == 0:
            problem = self._take_value(seen.local_rank, pipe)
            if not problem:
                return None
        failure = ProcessFailure(
            local_rank=seen.local_rank,
            pid=seen.pid,
            exitcode=seen.exitcode or 1,  # a failure must not look like a success to anybody
            error_file=self.error_files.get(seen.local_rank, ""),
            log_files=self._log_files(seen.local_rank),
        )
        if problem:
            failure.message = problem
        return failure

    def _take_value(self, local_rank: int, pipe: ResultPipe) -> str:
        """Keep a worker's return value; say what is wrong with it if it cannot be had."""
        if local_rank not in self._taken:
            self._taken[local_rank] = self._unpickle_value(local_rank, pipe)
        return self._taken[local_rank]

    def _unpickle_value(self, local_rank: int, pipe: ResultPipe) -> str:
        if not pipe.is_complete:
            return (
                "the worker ended with exit code 0 but without a return value; os._exit, or a "
                "library that calls it, ends a process in this way"
            )
        try:
            self._return_values[local_rank] = pipe.take_value()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's class may raise anything
            return (
                "the worker's return value cannot be unpickled in the launcher: "
                f"{type(error).__name__}: {error}"
            )
        return ""

    def _collect_return_values(self) -> dict[int, Any]:
        return {rank: self._return_values[rank] for rank in range(self.nprocs)}

    def _release(self) -> None:
        for rank in list(self._coming):
            self._stop_receiving(rank)
        for pipe in self._pipes.values():
            pipe.close()
        if self._siblings is not None:
            self._siblings.close()


def _multiprocessing() -> Any:
    """PyTorch's multiprocessing once torch is loaded, so that arguments may hold tensors."""
    if "torch" in sys.modules:
        with contextlib.suppress(ImportError):  # something else of that name
            import torch.multiprocessing

            return torch.multiprocessing
    import multiprocessing  # noqa: PLC0415 - function workers only

    return multiprocessing


def _inherit(fd: int | None, own: int) -> InheritedFd | None:
    """What a worker gets as a stream; without one of its own, the launcher's, if that is open."""
    if fd is None:
        try:
            os.fstat(own)
        except OSError:
            return None
        fd = own
    return InheritedFd(fd)
