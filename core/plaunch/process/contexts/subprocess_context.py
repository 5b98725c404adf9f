"""Workers that are programs; the name of the context is torchrun's."""

from __future__ import annotations

import errno
import os
import subprocess
from typing import TYPE_CHECKING, Any

from plaunch.errors import (
    ProgramNotExecutableError,
    ProgramNotFoundError,
    UsageError,
    WorkerStartError,
)
from plaunch.process.contexts.arguments import variable_value
from plaunch.process.contexts.supervised import SupervisedContext
from plaunch.process.kernel.handle import ProcessHandle
from plaunch.process.launcher_variables import inheritable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class SubprocessContext(SupervisedContext):
    """Runs the same program once per local rank. Its return values are all None."""

    def _start_worker(
        self, local_rank: int, stdout: int | None, stderr: int | None
    ) -> ProcessHandle:
        program, args = str(self.entrypoint), self.args[local_rank]
        env = {**self.envs[local_rank], **self._tags(local_rank)}
        popen = self._popen(local_rank)
        return ProcessHandle(start_program(program, args, env, stdout, stderr, local_rank, popen))


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
    """An argument as a string, converted as in torchrun."""
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
