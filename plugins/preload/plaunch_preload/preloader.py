"""Starts the workers of a launch from a fork server, or afresh where a fork could differ."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from plaunch.durations import LIMIT, bounded
from plaunch.process import (
    JOBS_VARIABLE,
    LAUNCHER_VARIABLE,
    Starter,
    find_field,
    inheritable,
    read_proc,
)

from plaunch_preload.command import CommandError, split_command
from plaunch_preload.fork_server import ForkServerError
from plaunch_preload.forked import BecomeError, inheriting_orphans
from plaunch_preload.server.messages import VARIABLE
from plaunch_preload.supervisor import ForkServerSupervisor
from plaunch_preload.variables import SET_FOR_WORKERS, find_mismatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch.process import Binding

    from plaunch_preload.command import Command
    from plaunch_preload.fork_server import ForkServer, Imports
    from plaunch_preload.forked import ForkedProcess

logger = logging.getLogger("plaunch")

TIMEOUT_VARIABLE = "PLAUNCH_PRELOAD_TIMEOUT"
TIMEOUT = 60.0  # seconds for the imports
_TAG_ROOM = 64  # characters for the tag of a start of workers
_MAX_NAMES = 5  # of changed modules, in a message


def read_timeout() -> float:
    """Return the time limit of the imports, in seconds.

    Raises:
        UsageError: the variable is not a duration.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    return bounded(LIMIT.read(text, f"variable {TIMEOUT_VARIABLE}")) if text else TIMEOUT


class Preloader(Starter):
    """Starts the workers of one launch.

    `wait` may run on another thread than the other methods.

    Args:
        modules: the modules that the fork server imports, in this order.
        timeout: the limit of the imports, in seconds.
    """

    def __init__(self, modules: Sequence[str], timeout: float = TIMEOUT) -> None:
        self._modules = tuple(modules)
        self._timeout = timeout
        self._supervisor: ForkServerSupervisor | None = None
        self._command: Command | None = None
        self._forked: list[ForkedProcess] = []  # for this round; empty if its workers start afresh
        self._warned: set[str] = set()
        self._reported: Imports | None = None

    def __str__(self) -> str:
        return f"a fork server that has imported {', '.join(self._modules)}, if that is safe"

    def begin(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start the fork server; its imports run in the background.

        Args:
            command: the command of a worker, as far as it is known.
            environ: the variables that all workers have in common.
        """
        try:
            self._command = split_command(command)
        except CommandError as error:
            self._warn(f"workers are started afresh: {error}")
            return
        env = _server_env(environ)
        supervisor = ForkServerSupervisor(
            self._command, env, self._modules, self._timeout, self._warn
        )
        try:
            supervisor.start()
        except RuntimeError as error:
            self._warn(f"workers are started afresh: {error}")
        else:
            self._supervisor = supervisor

    def wait(self) -> Mapping[str, float]:
        """Wait until workers can be forked or cannot; called when a round has formed.

        Returns:
            The duration of each import in seconds, if it has not been returned before.
        """
        supervisor = self._supervisor
        if supervisor is None:
            return {}
        supervisor.wait()
        self._renew_changed(supervisor)
        if (
            supervisor.find() is None
            or supervisor.imports is None
            or supervisor.imports is self._reported
        ):
            return {}
        self._reported = supervisor.imports
        return supervisor.imports.seconds

    def _renew_changed(self, supervisor: ForkServerSupervisor) -> None:
        """Import the modules again, if files of some have changed."""
        server = supervisor.find()
        if server is None:
            return
        try:
            changed = server.find_changed()
        except ForkServerError as error:
            self._warn(f"{error}; another one is started, and workers are started afresh meanwhile")
            supervisor.renew(is_awaited=False)
            return
        if changed:
            names = ", ".join(changed[:_MAX_NAMES]) + (", ..." if changed[_MAX_NAMES:] else "")
            self._warn(f"files of modules have changed ({names}); they are imported again")
            supervisor.renew(is_awaited=True)
            supervisor.wait()

    def prepare(self, envs: Mapping[int, Mapping[str, str]]) -> None:
        """Decide how to start the workers of a round; `envs` are their variables by local rank."""
        self._discard()
        supervisor = self._supervisor
        server = None if supervisor is None else supervisor.find()
        if supervisor is None or server is None or supervisor.imports is None:
            return
        mismatch = find_mismatch(server.env, supervisor.imports, envs)
        if mismatch is None:
            self._fork(server, len(envs))
            return
        name, reader = mismatch.name, mismatch.reader
        if not name:
            why = f"{reader} reads all variables while it is imported"
        elif not mismatch.is_common:
            why = f"{name} differs between workers, and {reader} reads it when loaded"
        elif name in SET_FOR_WORKERS:
            why = f"{name} is set in each round, and {reader} reads it when loaded"
        else:
            self._warn(
                f"this round's workers are started afresh: {name}, which {reader} reads when "
                "loaded, is set for all workers; the modules are imported again with it"
            )
            supervisor.renew(_server_env({**server.env, **_common(envs)}), is_awaited=False)
            return
        self._warn(f"workers are started afresh: {why}")

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
    ) -> ForkedProcess | None:
        """Start a worker that runs `command`; None if it has to be started afresh."""
        if not self._forked:
            return None
        worker = self._forked.pop(0)
        try:
            fds = _find_fds(stdout, stderr, pass_fds)
            message = self._worker_message(local_rank, command, env, list(fds))
            if binding is not None:
                binding.bind(worker.pid)
            worker.become(message, list(fds.values()))
        except (CommandError, BecomeError, OSError) as error:
            worker.discard()
            self._discard()
            self._warn(f"local rank {local_rank} and the next ones are started afresh: {error}")
            return None
        except BaseException:
            worker.discard()
            raise
        return worker

    def start_helper(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        pass_fds: Sequence[int] = (),
    ) -> ForkedProcess | None:
        """Fork a process of the launcher; None if it has to be executed."""
        supervisor = self._supervisor
        server = None if supervisor is None else supervisor.find()
        if server is None or self._command is None or self._command.interpreter[0] != command[0]:
            return None
        program, *arguments = command[1:]
        fds = {0: stdin, 1: stdout, 2: stderr, **{fd: fd for fd in pass_fds}}
        try:
            with inheriting_orphans():
                (helper,) = server.fork(1)
            helper.become(
                _message(command, arguments, env, list(fds), name="plaunch-store", helper=program),
                list(fds.values()),
            )
        except (ForkServerError, BecomeError, OSError) as error:
            self._warn(f"the store host is started afresh: {error}")
            return None
        return helper

    def _worker_message(
        self, local_rank: int, command: Sequence[str], env: Mapping[str, str], targets: list[int]
    ) -> dict[str, object]:
        """Return the message that makes a forked process a worker.

        Raises:
            CommandError: a child of this fork server cannot run the command.
        """
        own = split_command(command)
        if own != self._command:
            raise CommandError("the workers run different programs")
        name = os.path.basename(own.target) or "function"
        name = f"{name[: 14 - len(str(local_rank))]}:{local_rank}"
        return _message(command, own.arguments, env, targets, name=name)

    def _fork(self, server: ForkServer, count: int) -> None:
        try:
            with inheriting_orphans():
                self._forked = server.fork(count)
        except (ForkServerError, OSError) as error:
            self._warn(f"this round's workers are started afresh: {error}")

    def _discard(self) -> None:
        """End forked processes that are not needed."""
        while self._forked:
            self._forked.pop().discard()

    def fds(self) -> list[int]:
        """Descriptors that a forked child of the launcher must not keep."""
        server = None if self._supervisor is None else self._supervisor.find()
        return [] if server is None else server.fds()

    def close(self) -> None:
        """End the fork server; workers continue."""
        self._discard()
        if self._supervisor is not None:
            self._supervisor.close()

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("--preload=%s: %s", ",".join(self._modules), text)


def _message(
    command: Sequence[str],
    arguments: Sequence[str],
    env: Mapping[str, str],
    targets: list[int],
    *,
    name: str,
    helper: str = "",
) -> dict[str, object]:
    """Return the message for a forked process; see `server.worker.become`."""
    return {
        "arguments": list(arguments),
        "command": list(command),
        "folder": os.getcwd(),
        "helper": helper,
        "name": name,
        "shown": {
            JOBS_VARIABLE: env.get(JOBS_VARIABLE, ""),
            LAUNCHER_VARIABLE: "",
            VARIABLE: "",
            "PYTHONPATH": env.get("PYTHONPATH", ""),
        },
        "targets": targets,
        "umask": _read_umask(),
        "variables": dict(env),
    }


def _server_env(environ: Mapping[str, str]) -> dict[str, str]:
    tags = environ.get(JOBS_VARIABLE, "").rstrip(":")
    return {
        **inheritable(environ),
        # Workers overwrite both in their memory, which other processes read.
        JOBS_VARIABLE: tags + ":" * _TAG_ROOM,
        LAUNCHER_VARIABLE: str(os.getpid()),
    }


def _common(envs: Mapping[int, Mapping[str, str]]) -> dict[str, str]:
    """Return the variables that all workers have in common."""
    first, *others = envs.values()
    return {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in others)
    }


def _find_fds(stdout: int | None, stderr: int | None, pass_fds: Sequence[int]) -> dict[int, int]:
    """Return the launcher's descriptors by the numbers that a worker gets."""
    fds = {0: 0, 1: 1 if stdout is None else stdout, 2: 2 if stderr is None else stderr}
    return {**{to: fd for to, fd in fds.items() if _is_open(fd)}, **{fd: fd for fd in pass_fds}}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _read_umask() -> int:
    """Return the umask; `os.umask` would change it for a moment."""
    return int(find_field(read_proc("self/status"), "Umask"), 8)
