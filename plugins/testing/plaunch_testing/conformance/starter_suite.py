"""The base class of the suite for starters: a launch, and the program of its workers."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from plaunch.process import list_numbers, read_environ, read_name

from plaunch_testing.conformance.plugin_suite import OwnThread, PluginSuite, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from plaunch.plugin import PluginContext
    from plaunch.process import Binding, Starter

    T = TypeVar("T")

WAIT_TIMEOUT = 60.0  # seconds for `wait`, the only call that may take long
_END = 20.0  # seconds for a worker that has nothing to do, on a busy machine
_POLL_PERIOD = 0.01  # seconds
_MARK = "PLAUNCH_CONFORMANCE"  # a variable that marks the processes of a test

# A worker: prints its own state, or exits as its arguments say.
_PROGRAM = """\
import json, os, resource, signal, sys

def status(name):
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith(name + ":"))

def inode(fd):
    found = os.fstat(fd)
    return [found.st_dev, found.st_ino]

def files():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            # Some builds of libffi keep their own file open.
            if not os.path.basename(os.readlink("/proc/self/fd/" + name)).startswith("libffi.so"):
                found[name] = inode(int(name))
        except OSError:
            pass  # that of the listing
    return found

what, *words = sys.argv[1:]
if what == "show":
    seen = {
        "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "group": os.getpgid(0),
        "arguments": [os.fsencode(word).hex() for word in words],
        "environment": {os.fsencode(name).hex(): os.fsencode(value).hex()
                        for name, value in os.environ.items()},
        "files": files(), "folder": os.getcwd(), "umask": status("Umask"),
        "limits": {name: resource.getrlimit(getattr(resource, name))
                   for name in dir(resource) if name.startswith("RLIMIT_")},
        "ignored": status("SigIgn"), "blocked": status("SigBlk"), "caught": status("SigCgt"),
        "processors": sorted(os.sched_getaffinity(0)),
    }
    os.write(1, json.dumps(seen).encode())
elif what == "exit":
    sys.exit(int(words[0]))
elif what == "die":
    os.kill(os.getpid(), int(words[0]))
elif what == "wait":
    os.read(int(words[0]), 1)
    sys.exit(7)
elif what == "write":
    os.write(1, b"to stdout")
    os.write(2, b"to stderr")
"""


class StarterSuite(PluginSuite):
    """A launch with a starter."""

    def plugin(self) -> Callable[[PluginContext], Starter | None]:
        """Return the function that creates a launch's starter; override this."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _ends(self, _surroundings: None) -> Iterator[None]:
        self.program = os.path.join(self.folder, "worker.py")
        with open(self.program, "w") as file:
            file.write(_PROGRAM)
        self._mark = uuid.uuid4().hex
        self._starters: list[Starter] = []
        self._workers: list[Any] = []
        self._thread = OwnThread()
        yield
        for worker in self._workers:
            if worker.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
                wait_until(lambda worker=worker: worker.poll() is not None)  # type: ignore[misc]
        with contextlib.suppress(Exception, pytest.fail.Exception):
            self.end_use()
        self._thread.end()

    # --- a launch ---------------------------------------------------------------------------------

    def call(self, what: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function of the starter on the agent's thread; fail after `seconds`."""
        return self._thread.call(self.seconds, what, lambda: function(*args, **kwargs))

    def create(self) -> Starter:
        """Create the starter of a launch; it is closed after the test."""
        starter: Starter | None = self.call("creating it", self.thing, self.context())
        if starter is None:
            pytest.skip("it starts no workers with these options")
        self._starters.append(starter)
        return starter

    def begin(self, *words: str) -> Starter:
        """Create a starter, and begin a launch of workers with these arguments."""
        starter = self.create()
        self.call("begin()", starter.begin, self.command(*words), self.environment())
        return starter

    def form(self, starter: Starter, *envs: Mapping[str, str]) -> None:
        """Prepare a round with these environments by local rank."""
        within(WAIT_TIMEOUT, "wait()", starter.wait)
        self.call("prepare()", starter.prepare, dict(enumerate(envs or [self.environment()])))

    def start(
        self,
        starter: Starter,
        *words: str,
        env: Mapping[str, str] | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        pass_fds: Sequence[int] = (),
        binding: Binding | None = None,
        local_rank: int = 0,
    ) -> Any:
        """Start a worker with the starter; execute it if the starter returns None."""
        env = self.environment() if env is None else env
        options: dict[str, Any] = {
            "env": env,
            "stdout": stdout,
            "stderr": stderr,
            "pass_fds": pass_fds,
        }
        command = self.command(*words)
        worker: Any = self.call(
            "start()", starter.start, local_rank, command, binding=binding, **options
        )
        if worker is None:
            with contextlib.nullcontext() if binding is None else binding.applied():
                worker = subprocess.Popen(command, start_new_session=True, **options)
        self._workers.append(worker)
        return worker

    def command(self, *words: str) -> list[str]:
        """Return a worker's command."""
        return [sys.executable, "-u", self.program, *(words or ("show",))]

    def environment(self, **more: str) -> dict[str, str]:
        """Return a worker's environment."""
        return {**os.environ, _MARK: self._mark, **more}

    def close(self, starter: Starter) -> None:
        """Close a starter."""
        self.call("close()", starter.close)

    def use_once(self) -> object:
        """Launch one worker."""
        starter = self.begin()
        self.form(starter)
        return starter, self.shown(starter)

    def end_use(self) -> None:
        """Close all starters; other tests cover errors."""
        for starter in self._starters:
            with contextlib.suppress(Exception, pytest.fail.Exception):
                within(self.seconds, "close()", starter.close)

    def shown(
        self, starter: Starter | None, *words: str, pass_fds: Sequence[int] = (), **options: Any
    ) -> dict[str, Any]:
        """Return the state that a worker prints; without a starter, that of an executed one."""
        read, write = os.pipe()
        with open(read, "rb") as reader:
            try:
                if starter is not None:
                    worker = self.start(
                        starter, "show", *words, stdout=write, pass_fds=pass_fds, **options
                    )
                else:
                    worker = self.call("a fresh start", self._execute, words, write, pass_fds)
            finally:
                os.close(write)
            assert select.select([reader], [], [], _END)[0], "the worker printed nothing"
            text = reader.read()
        self.end(worker)
        assert text, f"the worker has ended with {worker.returncode} before it printed anything"
        seen: dict[str, Any] = json.loads(text)
        assert seen["pid"] == worker.pid, f"the worker is pid {seen['pid']}, not {worker.pid}"
        return seen

    def _execute(self, words: Sequence[str], stdout: int, pass_fds: Sequence[int]) -> Any:
        worker = subprocess.Popen(
            self.command("show", *words),
            env=self.environment(),
            stdout=stdout,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        self._workers.append(worker)
        return worker

    def end(self, worker: Any) -> int:
        """Wait for a worker's exit, and return its code."""
        if not wait_until(lambda: worker.poll() is not None):
            pytest.fail(
                f"the exit of a worker (pid {worker.pid}) was not noticed within {_END:g} s"
            )
        code: int = worker.poll()
        return code

    def assert_gone(self) -> None:
        """Fail if processes of this test are left, other than its workers."""
        found: list[int] = []

        def is_gone() -> bool:
            found[:] = sorted(_marked(self._mark) - {worker.pid for worker in self._workers})
            return not found

        if not wait_until(is_gone, self.seconds):
            names = ", ".join(f"pid {pid} ({read_name(pid)})" for pid in found)
            pytest.fail(f"it leaves {names}")


def wait_until(condition: Callable[[], bool], seconds: float = _END) -> bool:
    """Wait until a condition holds; return False after `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_PERIOD)
    return True


def _marked(mark: str) -> set[int]:
    """Return the other processes that have the mark of a test."""
    variable = f"{_MARK}={mark}".encode()
    others = list_numbers() - {os.getpid()}
    return {pid for pid in others if variable in read_environ(pid).split(b"\0")}
