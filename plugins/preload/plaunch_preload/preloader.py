"""Starting the workers of a launch by a fork server, or afresh where that would not be the same."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from plaunch.durations import LIMIT, bounded
from plaunch.process import JOBS_VARIABLE, LAUNCHER_VARIABLE, find_field, inheritable, read_proc

from plaunch_preload.command import CommandError, split_command
from plaunch_preload.fork_server import ForkServerError
from plaunch_preload.forked import BecomeError
from plaunch_preload.keeper import Keeper
from plaunch_preload.server.messages import VARIABLE
from plaunch_preload.subreaper import inheriting_orphans
from plaunch_preload.variables import SET_FOR_WORKERS, find_unlike

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
_MOST_NAMES = 5  # of changed modules, in a message


def read_timeout() -> float:
    """How long the imports may take, in seconds.

    Raises:
        UsageError: the variable for it says no duration.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    return bounded(LIMIT.read(text, f"variable {TIMEOUT_VARIABLE}")) if text else TIMEOUT


class Preloader:
    """Starts the workers of one launch; a `plaunch.process.Starter`.

    `wait` may run on another thread than the rest.

    Args:
        modules: what the fork server imports, in this order.
        timeout: seconds for the imports.
    """

    def __init__(self, modules: Sequence[str], timeout: float = TIMEOUT) -> None:
        self._modules = tuple(modules)
        self._timeout = timeout
        self._keeper: Keeper | None = None
        self._command: Command | None = None
        self._forked: list[ForkedProcess] = []  # for this round; none if its workers start afresh
        self._said: set[str] = set()
        self._told: Imports | None = None

    def __str__(self) -> str:
        return f"a fork server that has imported {', '.join(self._modules)}, if that is safe"

    def begin(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start the fork server; its imports go on in the background.

        Args:
            command: what a worker is started with, as far as it is known.
            environ: the variables of the workers, as far as they have them in common.
        """
        try:
            self._command = split_command(command)
        except CommandError as error:
            self._say(f"workers are started afresh: {error}")
            return
        env = _server_env(environ)
        keeper = Keeper(self._command, env, self._modules, self._timeout, self._say)
        try:
            keeper.start()
        except RuntimeError as error:
            self._say(f"workers are started afresh: {error}")
        else:
            self._keeper = keeper

    def wait(self) -> Mapping[str, float]:
        """Wait until workers can be forked, or it is known that they cannot; a round has formed.

        Returns:
            How long each module took to import, in seconds, if that is news.
        """
        keeper = self._keeper
        if keeper is None:
            return {}
        keeper.wait()
        self._renew_changed(keeper)
        if keeper.find() is None or keeper.imports is None or keeper.imports is self._told:
            return {}
        self._told = keeper.imports
        return keeper.imports.seconds

    def _renew_changed(self, keeper: Keeper) -> None:
        """Have the modules imported again, if the files of some have changed."""
        server = keeper.find()
        if server is None:
            return
        try:
            changed = server.find_changed()
        except ForkServerError as error:
            self._say(f"{error}; another one is started, and workers are started afresh meanwhile")
            keeper.renew(is_awaited=False)
            return
        if changed:
            names = ", ".join(changed[:_MOST_NAMES]) + (", ..." if changed[_MOST_NAMES:] else "")
            self._say(f"files of modules have changed ({names}); they are imported again")
            keeper.renew(is_awaited=True)
            keeper.wait()

    def prepare(self, envs: Mapping[int, Mapping[str, str]]) -> None:
        """Choose how the workers of a round are started; `envs` are theirs, by local rank."""
        self._discard()
        keeper = self._keeper
        server = None if keeper is None else keeper.find()
        if keeper is None or server is None or keeper.imports is None:
            return
        unlike = find_unlike(server.env, keeper.imports, envs)
        if unlike is None:
            self._fork(server, len(envs))
            return
        if not unlike.name:
            why = f"{unlike.reader} reads all variables while it is imported"
        elif not unlike.is_common:
            why = f"{unlike.name} differs between workers, and {unlike.reader} reads it when loaded"
        elif unlike.name in SET_FOR_WORKERS:
            why = f"{unlike.name} is set in each round, and {unlike.reader} reads it when loaded"
        else:
            self._say(
                f"this round's workers are started afresh: {unlike.name}, which {unlike.reader} "
                "reads when loaded, is set for all workers; the modules are imported again with it"
            )
            keeper.renew(_server_env({**server.env, **_common(envs)}), is_awaited=False)
            return
        self._say(f"workers are started afresh: {why}")

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
        """A worker that runs `command`; None if it has to be started afresh."""
        if not self._forked:
            return None
        worker = self._forked.pop(0)
        try:
            fds = _find_fds(stdout, stderr, pass_fds)
            message = self._message(local_rank, command, env, list(fds))
            if binding is not None:
                binding.bind(worker.pid)
            worker.become(message, list(fds.values()))
        except (CommandError, BecomeError, OSError) as error:
            worker.discard()
            self._discard()
            self._say(f"local rank {local_rank} and the next ones are started afresh: {error}")
            return None
        except BaseException:
            worker.discard()
            raise
        return worker

    def _message(
        self, local_rank: int, command: Sequence[str], env: Mapping[str, str], targets: list[int]
    ) -> dict[str, object]:
        """What a forked process is told to become; see `plaunch_preload.server.worker.become`.

        Raises:
            CommandError: it is none that a child of this fork server can become.
        """
        own = split_command(command)
        if own != self._command:
            raise CommandError("the workers run different programs")
        name = os.path.basename(own.target) or "function"
        return {
            "arguments": list(own.arguments),
            "command": list(command),
            "folder": os.getcwd(),
            "name": f"{name[: 14 - len(str(local_rank))]}:{local_rank}",
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

    def _fork(self, server: ForkServer, count: int) -> None:
        try:
            with inheriting_orphans():
                self._forked = server.fork(count)
        except (ForkServerError, OSError) as error:
            self._say(f"this round's workers are started afresh: {error}")

    def _discard(self) -> None:
        """End what was forked and is not wanted."""
        while self._forked:
            self._forked.pop().discard()

    def fds(self) -> list[int]:
        """Descriptors that a forked child of the launcher must not keep."""
        server = None if self._keeper is None else self._keeper.find()
        return [] if server is None else server.fds()

    def close(self) -> None:
        """End the fork server; workers go on."""
        self._discard()
        if self._keeper is not None:
            self._keeper.close()

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("--preload=%s: %s", ",".join(self._modules), text)


def _server_env(environ: Mapping[str, str]) -> dict[str, str]:
    tags = environ.get(JOBS_VARIABLE, "").rstrip(":")
    return {
        **inheritable(environ),
        # Workers overwrite both in their memory, where others look.
        JOBS_VARIABLE: tags + ":" * _TAG_ROOM,
        LAUNCHER_VARIABLE: str(os.getpid()),
    }


def _common(envs: Mapping[int, Mapping[str, str]]) -> dict[str, str]:
    """What all workers have in common."""
    first, *others = envs.values()
    return {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in others)
    }


def _find_fds(stdout: int | None, stderr: int | None, pass_fds: Sequence[int]) -> dict[int, int]:
    """The launcher's descriptors by the number that a worker gets them under."""
    fds = {0: 0, 1: 1 if stdout is None else stdout, 2: 2 if stderr is None else stderr}
    return {**{to: fd for to, fd in fds.items() if _is_open(fd)}, **{fd: fd for fd in pass_fds}}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _read_umask() -> int:
    """What a child would inherit; asking the system would change it for a moment."""
    return int(find_field(read_proc("self/status"), "Umask"), 8)
