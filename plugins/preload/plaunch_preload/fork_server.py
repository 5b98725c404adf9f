"""The fork server, from the side of the launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plaunch.process import describe_exit
from plaunch.texts import printable

from plaunch_preload.forked import ANSWER_TIMEOUT, ForkedProcess
from plaunch_preload.server.messages import VARIABLE, receive_answer, send

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch_preload.command import Command

HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hook")
_KILL_TIMEOUT = 2.0  # seconds for it to exit after SIGKILL
_EXIT_TIMEOUT = 0.2  # seconds for it to exit after it has closed the channel
_LAST_LINES = 5
_MAX_OUTPUT = 64 << 10  # bytes of its output that are kept


class ForkServerError(Exception):
    """A fork server, or one of its workers, has failed."""


@dataclass(frozen=True)
class Imports:
    """The result of a fork server's imports.

    Args:
        seconds: the duration of each import, by module; modules after a failed one are missing.
        problems: why workers cannot be forked; empty if they can.
        variables: the first reader (module and line) of each variable that was read.
        prefixes: the first reader of all variables with a prefix, by prefix.
        readers_of_all: the readers of all variables.
        output: the output of the imports.
    """

    seconds: Mapping[str, float]
    problems: Sequence[str]
    variables: Mapping[str, str]
    prefixes: Mapping[str, str]
    readers_of_all: Sequence[str]
    output: str


class ForkServer:
    """A process that imports modules, and then forks workers.

    Args:
        command: the command of a worker.
        env: the variables that all workers have in common.
        modules: the modules to import, in this order.
        is_probe: whether it only reports its version, and exits.

    Raises:
        OSError: the system does not start it.
    """

    def __init__(
        self,
        command: Command,
        env: Mapping[str, str],
        modules: Sequence[str],
        *,
        is_probe: bool = False,
    ) -> None:
        self.env = dict(env)
        self._output = os.memfd_create("plaunch-preload", os.MFD_CLOEXEC)
        self._channel, remote = socket.socketpair()
        self._in_use = threading.Lock()  # guards the channel between requests and `release`
        # Nothing is ever written to this pipe; closing this end ends the server.
        watched, self._alive = os.pipe()
        self._fds = [self._output, self._alive]
        config = {
            "alive": watched,
            "is_function": command.kind == "-c",
            "is_probe": is_probe,
            "modules": list(modules),
            "path": command.path(),
            "python_path": env.get("PYTHONPATH"),
            "script": command.script(),
        }
        paths = [HOOK, *filter(None, [env.get("PYTHONPATH")])]
        try:
            with remote, open(watched, "rb", buffering=0):
                self._process = subprocess.Popen(
                    command.of_probe() if is_probe else command.of_server(),
                    env={
                        **env,
                        "PYTHONPATH": os.pathsep.join(paths),
                        VARIABLE: str(remote.fileno()),
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    pass_fds=(remote.fileno(), watched),
                    start_new_session=True,
                )
            self._channel.settimeout(ANSWER_TIMEOUT)
            # If it has exited already, the first request fails.
            with contextlib.suppress(OSError):
                send(self._channel, config)
        except BaseException:
            self._close_fds()
            raise
        self.pid = self._process.pid

    def load(self, timeout: float) -> Imports:
        """Wait up to `timeout` seconds until it has imported its modules.

        Another thread may end the wait with `close`.

        Raises:
            ForkServerError: it has not finished by then, or has exited.
        """
        answer = self._receive(timeout, "import its modules")
        return Imports(
            seconds=answer["seconds"],
            problems=answer["problems"],
            variables=answer["variables"],
            prefixes=answer["prefixes"],
            readers_of_all=answer["readers_of_all"],
            output=self._read_output(),
        )

    def probe(self, timeout: float) -> tuple[int, ...]:
        """Return the version of the interpreter, after it has reached the fork server's code.

        Raises:
            ForkServerError: it has not reached it.
        """
        version: list[int] = self._receive(timeout, "start")["version"]
        return tuple(version)

    def find_changed(self) -> list[str]:
        """Return the modules whose files have changed since they were imported.

        Raises:
            ForkServerError: it does not answer.
        """
        with self._in_use:
            self._send({"wanted": "changes"})
            changed: list[str] = self._receive(ANSWER_TIMEOUT, "check its files")["changed"]
        return changed

    def fork(self, count: int) -> list[ForkedProcess]:
        """Fork children of this process, which wait for `ForkedProcess.become`.

        This process must inherit orphans during the call.

        Raises:
            ForkServerError: not all could be forked; those that were have been ended.
        """
        channels: list[socket.socket] = []
        workers: list[ForkedProcess] = []
        try:
            with self._in_use:
                for _ in range(count):
                    own, remote = socket.socketpair()
                    channels.append(own)
                    with remote:
                        self._send({"wanted": "worker"}, [remote.fileno()])
            for own in channels:
                workers.append(ForkedProcess(self._read_pid(own), own))
        except BaseException:
            for worker in workers:
                worker.discard()
            for own in channels:
                own.close()  # which ends that worker
            raise
        return workers

    def wait(self) -> None:
        """Wait until it exits."""
        self._process.wait()

    def was_killed(self) -> bool:
        """Whether it was killed by a signal."""
        return (self._process.returncode or 0) < 0

    def describe_end(self) -> str:
        """Describe how it exited."""
        code = self._process.poll()
        return "it is still running" if code is None else describe_exit(code)

    def close(self) -> None:
        """Kill it and its processes except workers. Thread-safe; may be called more than once."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # which also ends waits on other threads
        if self._process.poll() is None:
            # Processes of modules are in its session; workers have their own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel
                self._process.wait(_KILL_TIMEOUT)

    def release(self) -> None:
        """Kill it and close all descriptors, when it is no longer used."""
        self.close()
        with self._in_use:
            self._close_fds()

    def fds(self) -> list[int]:
        """Descriptors that a forked child of the launcher must not keep."""
        return [self._channel.fileno(), *self._fds] if self._fds else []

    def _close_fds(self) -> None:
        self._channel.close()
        while self._fds:
            os.close(self._fds.pop())

    def _send(self, message: Mapping[str, object], fds: Sequence[int] = ()) -> None:
        self._channel.settimeout(ANSWER_TIMEOUT)
        try:
            send(self._channel, message, fds)
        except OSError as error:
            raise self._failure(f"does not accept requests: {error}") from error

    def _receive(self, timeout: float, what: str) -> dict[str, Any]:
        try:
            return receive_answer(self._channel, timeout)
        except TimeoutError as error:
            raise self._failure(f"did not {what} within {timeout:g} s") from error
        except OSError as error:
            raise self._failure("has ended") from error

    def _read_pid(self, channel: socket.socket) -> int:
        """Read the process id of a worker, and check that it is a child of this process."""
        try:
            hello = receive_answer(channel, ANSWER_TIMEOUT)
        except OSError as error:
            raise self._failure(f"has forked no worker: {error}") from error
        if hello["parent"] != os.getpid():
            raise ForkServerError(
                f"a worker of the fork server (pid {hello['pid']}) has become a child of pid "
                f"{hello['parent']}, and not of the launcher"
            )
        pid: int = hello["pid"]
        return pid

    def _failure(self, what: str) -> ForkServerError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT)
        code = self._process.returncode
        end = "" if code is None else f" ({describe_exit(code)})"
        lines = self._read_output().strip().splitlines()[-_LAST_LINES:]
        wrote = "".join(f"\n    {printable(line)}" for line in lines)
        return ForkServerError(
            f"the fork server (pid {self.pid}) {what}{end}"
            + (f"; the last that it wrote:{wrote}" if wrote else "")
        )

    def _read_output(self) -> str:
        with contextlib.suppress(OSError):
            size = os.fstat(self._output).st_size
            data = os.pread(self._output, _MAX_OUTPUT, max(size - _MAX_OUTPUT, 0))
            return data.decode(errors="replace")
        return ""
