"""`start_processes`, and the context of workers that are programs; the names are torchrun's."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.durations import SHUTDOWN_TIMEOUT
from plaunch.errors import (
    ProgramNotExecutableError,
    ProgramNotFoundError,
    UsageError,
    WorkerStartError,
)
from plaunch.parts import FUNCTIONS, load_part
from plaunch.process.children import ProcessHandle
from plaunch.process.context import variable_value, worker_args, worker_envs
from plaunch.process.logs import Std, default_logs_specs
from plaunch.process.marks import inheritable
from plaunch.process.supervised import SupervisedContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from plaunch.process.components import Binder, ContextComponents
    from plaunch.process.logs import LogsSpecs


class WorkerProgram(NamedTuple):
    """The program of one worker, with the attributes of torchrun's handlers.

    Args:
        local_rank_id: the local rank.
        proc: the process, as `subprocess.Popen` has it.
    """

    local_rank_id: int
    proc: Any

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send `death_sig` (SIGTERM if None) to the worker's process group; does not wait."""
        if self.proc.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(self.proc.pid, death_sig or signal.SIGTERM)


class SubprocessContext(SupervisedContext):
    """Runs the same program once per local rank. Its return values are all None."""

    @property
    def subprocess_handlers(self) -> dict[int, WorkerProgram]:
        """The started programs by local rank; the name is torchrun's."""
        return {
            rank: WorkerProgram(rank, worker.popen)
            for rank, worker in self._outcomes.workers.items()
        }

    def _start_worker(
        self, local_rank: int, stdout: int | None, stderr: int | None
    ) -> ProcessHandle:
        program, args = str(self.entrypoint), self.args[local_rank]
        env, popen = self._environment(local_rank), partial(self._popen, local_rank)
        with contextlib.ExitStack() as stack:
            if (data := self._components.stdin) is not None:
                popen = partial(popen, stdin=stack.enter_context(_readable(data)))
            worker = start_program(program, args, env, stdout, stderr, local_rank, popen)
        return ProcessHandle(worker)


def start_program(
    program: str,
    args: Sequence[Any],
    env: Mapping[str, Any],
    stdout: int | None,
    stderr: int | None,
    local_rank: int,
    popen: Callable[..., Any] | None = None,
) -> Any:
    """Start a program as leader of a new session, with the launcher's environment.

    Args:
        program: a path, or a name to search in the PATH of its environment.
        args: its arguments; values that are not strings are converted.
        env: variables to add to the launcher's environment; values are converted.
        stdout: an open descriptor, or None for the launcher's own.
        stderr: the same for stderr.
        local_rank: the local rank, for errors.
        popen: called instead of `subprocess.Popen`, with the same arguments.

    Returns:
        What `popen` returns.

    Raises:
        ProgramNotFoundError: there is no such program.
        ProgramNotExecutableError: the system does not execute it.
        WorkerStartError: the system refuses for another reason, such as too many processes.
        UsageError: an argument or a variable has a NUL character.
    """
    command = (program, *map(_argument, args))
    own = {name: variable_value(local_rank, name, value) for name, value in env.items()}
    environment = inheritable({**os.environ, **own})
    try:
        return (popen or subprocess.Popen)(
            command, env=environment, stdout=stdout, stderr=stderr, start_new_session=True
        )
    except ValueError as error:
        raise UsageError(f"{command!r} cannot be started: {error}") from error
    except OSError as error:
        subject = f"cannot start {program!r} for local rank {local_rank}"
        raise _start_error(subject, program, environment.get("PATH"), error) from error


@contextlib.contextmanager
def _readable(data: bytes) -> Iterator[int]:
    """Open a descriptor with its own position from which a process reads `data`.

    It is memory, of which nothing is left when the last process has closed it.
    """
    with open(os.memfd_create("stdin"), "w+b") as file:
        file.write(data)
        file.seek(0)
        yield file.fileno()


def _start_error(subject: str, program: str, path: str | None, error: OSError) -> WorkerStartError:
    known: ProgramNotFoundError | ProgramNotExecutableError
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        known = ProgramNotFoundError(f"{subject}: {_why_not_found(program, path)}")
    elif error.errno in (errno.EACCES, errno.ENOEXEC):
        known = ProgramNotExecutableError(f"{subject}: {_why_not_executable(program, error)}")
    else:
        from plaunch.capacity import explain  # errors only

        return WorkerStartError(f"{subject}: {explain(error)}")
    known.errno = error.errno
    return known


def _argument(value: Any) -> str:
    """Return an argument as a string, converted as in torchrun."""
    return os.fsdecode(value) if isinstance(value, (bytes, os.PathLike)) else str(value)


def _why_not_found(program: str, path: str | None) -> str:
    import shutil  # errors only

    if shutil.which(program, path=path) is not None:
        return "it is a script, and the interpreter after its '#!' does not exist"
    if "/" in program:
        return "there is no such file"
    return f"no directory in PATH has it; PATH is {path!r}"


def _why_not_executable(program: str, error: OSError) -> str:
    if error.errno == errno.ENOEXEC:
        return "it is neither a binary for this system nor a script that begins with '#!'"
    if os.path.isdir(program):
        return "it is a directory"
    return "it may not be executed by this user; see chmod +x"


def start_processes(
    name: str,
    entrypoint: Callable[..., Any] | str | os.PathLike[str],
    args: Mapping[int, Any],
    envs: Mapping[int, Mapping[str, Any]] | None = None,
    logs_specs: LogsSpecs | None = None,
    log_line_prefixes: Mapping[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: object = None,
    duplicate_stdout_filters: Sequence[str] | None = None,
    duplicate_stderr_filters: Sequence[str] | None = None,
    *,
    log_dir: str | os.PathLike[str] | None = None,
    redirects: Std | Mapping[int, Std] = Std.NONE,
    tee: Std | Mapping[int, Std] = Std.NONE,
    shutdown_timeout: float = SHUTDOWN_TIMEOUT,
    handle_signals: bool = True,
    binder: Binder | None = None,
    components: ContextComponents | None = None,
) -> SupervisedContext:
    """Start one worker per local rank, and return their context.

    There are as many workers as entries in `args`. Both forms of torchrun's call work: with
    `logs_specs`, or with `log_dir`, `redirects` and `tee`.

    Args:
        name: what the workers are; part of the default console prefix.
        entrypoint: a function, or the path or name of a program.
        args: the arguments by local rank, 0 to n-1; a bare string is one argument.
        envs: variables to add to the environment by local rank, or None for no variables.
        logs_specs: decides where streams go; a path means `log_dir`, as in older torchrun.
        log_line_prefixes: console prefixes of teed streams; by default `[<name><local_rank>]:`.
        start_method: `spawn`, `fork` or `forkserver`, for functions. `forkserver` is
            multiprocessing's own, unless a `starter` is given.
        numa_options: how workers are bound to processors near their devices, as `NumaOptions` or
            torch's; None does not bind.
        duplicate_stdout_filters: teed lines that contain one of these are also collected in a file.
        duplicate_stderr_filters: the same for stderr.
        log_dir: base directory for log files.
        redirects: the streams that go to files, for all or by local rank.
        tee: the streams that go to files and to the console.
        shutdown_timeout: seconds between the soft signal and SIGKILL, unless `close` gets another
            number.
        handle_signals: whether to install torchrun's handlers, which raise `SignalException`. False
            if an agent handles signals.
        binder: binds workers to processors and devices; by default as `numa_options` say.
        components: what an agent shares with its contexts.

    Raises:
        RankMappingError: a mapping does not name exactly the local ranks.
        UsageError: an argument is invalid.
        LogDirectoryError: the log directory cannot be used.
        WorkerStartError: a worker cannot be started; the others have been stopped.
    """
    if isinstance(logs_specs, (str, os.PathLike)):
        if log_dir is not None:
            raise UsageError(f"log_dir is given twice: {os.fspath(logs_specs)!r} and {log_dir!r}")
        logs_specs, log_dir = None, logs_specs
    if logs_specs is not None and (log_dir is not None or redirects or tee):
        raise UsageError("give either logs_specs, or log_dir, redirects and tee, but not both")
    # Check what the caller gave before anything is created for it.
    arguments = worker_args(args)
    common: dict[str, Any] = {
        "name": name,
        "args": arguments,
        "envs": worker_envs(envs, len(arguments)),
        "logs_specs": logs_specs,
        "close_logs": False,
        "log_line_prefixes": log_line_prefixes,
        "duplicate_stdout_filters": duplicate_stdout_filters,
        "duplicate_stderr_filters": duplicate_stderr_filters,
        "shutdown_timeout": shutdown_timeout,
        "handle_signals": handle_signals,
        "numa_options": numa_options,
        "binder": binder,
        "components": components,
    }
    if logs_specs is None:
        common.update(logs_specs=default_logs_specs(log_dir, redirects, tee), close_logs=True)
    context: SupervisedContext
    if isinstance(entrypoint, (str, os.PathLike)):
        context = SubprocessContext(entrypoint=os.fspath(entrypoint), **common)
    else:
        context = load_part(FUNCTIONS)(entrypoint=entrypoint, start_method=start_method, **common)
    context.start()
    return context
