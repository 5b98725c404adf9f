"""The fork server as the launcher sees it: started, asked for workers, ended."""

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

from plaunch_preload.forked import ANSWER, ForkedProcess
from plaunch_preload.server.messages import VARIABLE, receive_answer, send

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch_preload.command import Command

HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hook")
_END = 2.0  # seconds for it to end when it is killed
_GOING = 0.2  # seconds for a server that has closed its end to be gone
_LAST_LINES = 5
_MOST_OUTPUT = 64 << 10  # bytes of what it writes that are kept


class ForkServerError(Exception):
    """A fork server, or a worker of one, does not do what it should; in words."""


@dataclass(frozen=True)
class Imports:
    """How the imports of a fork server went.

    Args:
        seconds: how long each module took, by name; those after a failed one are missing.
        problems: why workers cannot be forked; empty if they can.
        variables: who has read a variable meanwhile (module and line), by the variable's name.
        prefixes: who has read all variables with a prefix, by the prefix.
        readers_of_all: who has read all variables at once.
        output: what was written meanwhile.
    """

    seconds: Mapping[str, float]
    problems: Sequence[str]
    variables: Mapping[str, str]
    prefixes: Mapping[str, str]
    readers_of_all: Sequence[str]
    output: str


class ForkServer:
    """One process that imports modules, and then forks workers.

    Args:
        command: what a worker is started with.
        env: the variables of the workers, as far as they have them in common.
        modules: what it imports, in this order.
        is_probe: whether it only says that it is there, and ends.

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
        self._channel, theirs = socket.socketpair()
        self._in_use = threading.Lock()  # the channel, by who asks and who closes
        # Nothing is ever written there; that this end is closed ends the server.
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
            with theirs, open(watched, "rb", buffering=0):
                self._process = subprocess.Popen(
                    command.of_probe() if is_probe else command.of_server(),
                    env={
                        **env,
                        "PYTHONPATH": os.pathsep.join(paths),
                        VARIABLE: str(theirs.fileno()),
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    pass_fds=(theirs.fileno(), watched),
                    start_new_session=True,
                )
            self._channel.settimeout(ANSWER)
            # A server that has ended by now is noticed when it is asked.
            with contextlib.suppress(OSError):
                send(self._channel, config)
        except BaseException:
            self._close_fds()
            raise
        self.pid = self._process.pid

    def load(self, timeout: float) -> Imports:
        """Wait until it has imported its modules, at most `timeout` seconds.

        Another thread may end the wait with `close`.

        Raises:
            ForkServerError: it has not by then, or has ended.
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
        """The version of the interpreter, which has found its way to the fork server's code.

        Raises:
            ForkServerError: it has not; what was started as a probe has ended.
        """
        version: list[int] = self._receive(timeout, "begin")["version"]
        return tuple(version)

    def find_changed(self) -> list[str]:
        """The modules whose files have changed since they were imported.

        Raises:
            ForkServerError: it does not answer.
        """
        with self._in_use:
            self._send({"wanted": "changes"})
            changed: list[str] = self._receive(ANSWER, "look at its files")["changed"]
        return changed

    def fork(self, count: int) -> list[ForkedProcess]:
        """New children of this process, which wait for `ForkedProcess.become`.

        This process must inherit orphans while they are made.

        Raises:
            ForkServerError: there are not so many; those that there are have ended.
        """
        channels: list[socket.socket] = []
        workers: list[ForkedProcess] = []
        try:
            with self._in_use:
                for _ in range(count):
                    own, theirs = socket.socketpair()
                    channels.append(own)
                    with theirs:
                        self._send({"wanted": "worker"}, [theirs.fileno()])
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
        """Wait for its end."""
        self._process.wait()

    def was_killed(self) -> bool:
        """Whether a signal has ended it."""
        return (self._process.returncode or 0) < 0

    def describe_end(self) -> str:
        """How it has ended, in a few words."""
        code = self._process.poll()
        return "it still runs" if code is None else describe_exit(code)

    def close(self) -> None:
        """End it and what it has started, but for workers; may be called more than once.

        Any thread may do so, also while another one waits for it.
        """
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # which ends the wait of others, too
        if self._process.poll() is None:
            # What modules have started meanwhile is in its session; workers have their own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel's, sooner or later
                self._process.wait(_END)

    def release(self) -> None:
        """Close what belongs to it, once nobody uses it any more."""
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
        self._channel.settimeout(ANSWER)
        try:
            send(self._channel, message, fds)
        except OSError as error:
            raise self._failure(f"cannot be asked: {error}") from error

    def _receive(self, timeout: float, what: str) -> dict[str, Any]:
        try:
            return receive_answer(self._channel, timeout)
        except TimeoutError as error:
            raise self._failure(f"did not {what} within {timeout:g} s") from error
        except OSError as error:
            raise self._failure("has ended") from error

    def _read_pid(self, channel: socket.socket) -> int:
        """The process id of a worker, which says it itself and is a child of this process."""
        try:
            hello = receive_answer(channel, ANSWER)
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
            self._process.wait(_GOING)
        code = self._process.returncode
        end = "" if code is None else f" ({describe_exit(code)})"
        lines = self._read_output().strip().splitlines()[-_LAST_LINES:]
        wrote = "".join(f"\n    {line}" for line in lines)
        return ForkServerError(
            f"the fork server (pid {self.pid}) {what}{end}"
            + (f"; the last that it wrote:{wrote}" if wrote else "")
        )

    def _read_output(self) -> str:
        with contextlib.suppress(OSError):
            size = os.fstat(self._output).st_size
            data = os.pread(self._output, _MOST_OUTPUT, max(size - _MOST_OUTPUT, 0))
            return data.decode(errors="replace")
        return ""
