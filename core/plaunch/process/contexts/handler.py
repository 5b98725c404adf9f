"""Starting one program as a worker; the names are torchrun's."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

from plaunch.errors import (
    ProgramNotExecutableError,
    ProgramNotFoundError,
    UsageError,
    WorkerStartError,
)
from plaunch.process.binding import default_binder, while_bound
from plaunch.process.contexts.arguments import variable_value
from plaunch.process.launcher_variables import inheritable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class SubprocessHandler:
    """One running program: leader of a session of its own, with the launcher's environment.

    Args:
        entrypoint: the program; without a slash it is searched in the PATH of its environment.
        args: its arguments; what is not a string is converted.
        env: variables to add to the launcher's environment; values are converted.
        stdout: a path to overwrite, an open descriptor, or None for the launcher's own.
        stderr: the same for stderr.
        local_rank_id: the local rank.
        numa_options: how the program is bound to processors near its device, which is the one of
            its local rank; None leaves it.

    Raises:
        ProgramNotFoundError: there is no such program.
        ProgramNotExecutableError: it exists but the system does not execute it.
        WorkerStartError: the system refuses for another reason, such as too many processes.
        UsageError: an argument or a variable has a NUL character, or the program cannot be bound.
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
        binder = default_binder(numa_options)  # contexts bind by themselves
        binding = None if binder is None else binder.plan(local_rank_id + 1).get(local_rank_id)
        self.local_rank_id = local_rank_id
        own = {name: variable_value(local_rank_id, name, value) for name, value in env.items()}
        environment = inheritable({**os.environ, **own})
        with while_bound(binding), contextlib.ExitStack() as files:
            streams = [
                files.enter_context(open(std, "wb"))
                if isinstance(std, str) and std
                else std or None
                for std in (stdout, stderr)
            ]
            self.proc = self._popen((entrypoint, *map(_argument, args)), environment, streams)

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send `death_sig` (SIGTERM if None) to the program and its process group; do not wait.

        Nothing happens if the program has ended and was waited for.
        """
        if self.proc.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # the group is gone, as intended
                os.killpg(self.proc.pid, death_sig or signal.SIGTERM)

    def _popen(
        self, command: tuple[str, ...], env: dict[str, str], streams: Sequence[Any]
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                command, env=env, stdout=streams[0], stderr=streams[1], start_new_session=True
            )
        except ValueError as error:
            raise UsageError(f"{command!r} cannot be started: {error}") from error
        except OSError as error:
            raise self._start_error(command[0], env.get("PATH"), error) from error

    def _start_error(self, program: str, path: str | None, error: OSError) -> WorkerStartError:
        subject = f"cannot start {program!r} for local rank {self.local_rank_id}"
        known: ProgramNotFoundError | ProgramNotExecutableError | None = None
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            known = ProgramNotFoundError(f"{subject}: {_why_not_found(program, path)}")
        elif error.errno in (errno.EACCES, errno.ENOEXEC):
            known = ProgramNotExecutableError(f"{subject}: {_why_not_executable(program, error)}")
        if known is not None:
            known.errno = error.errno
            return known
        from plaunch.capacity import explain  # noqa: PLC0415 - errors only

        return WorkerStartError(f"{subject}: {explain(error)}")


def get_subprocess_handler(
    entrypoint: str,
    args: Sequence[Any],
    env: Mapping[str, Any],
    stdout: str | int | None,
    stderr: str | int | None,
    local_rank_id: int,
    numa_options: object = None,
) -> SubprocessHandler:
    """Start a program; the one place to replace where programs are to be started differently."""
    return SubprocessHandler(
        entrypoint, args, env, stdout, stderr, local_rank_id, numa_options=numa_options
    )


def _argument(value: Any) -> str:
    """An argument as a program gets it; torchrun converts in the same way."""
    return os.fsdecode(value) if isinstance(value, (bytes, os.PathLike)) else str(value)


def _why_not_found(program: str, path: str | None) -> str:
    import shutil  # noqa: PLC0415 - errors only

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
