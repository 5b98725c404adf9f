"""Checks that started workers have the same state as executed ones."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from plaunch.errors import WorkerStartError

from plaunch_testing.conformance.starter_suite import StarterSuite

if TYPE_CHECKING:
    from collections.abc import Iterator

_ODD = ("", "two words", "--", "-x", "caf\u00e9", "\udcff", "a\nb", "*")


class StartedWorkers(StarterSuite):
    """The checks of a worker's initial state."""

    def test_a_worker_is_a_child_that_leads_a_session(self) -> None:
        """So the launcher notices its exit, and can stop it with its descendants."""
        starter = self.begin()
        self.form(starter)
        seen = self.shown(starter)
        assert seen["parent"] == os.getpid(), f"it is a child of pid {seen['parent']}"
        assert seen["session"] == seen["group"] == seen["pid"], "it does not lead its own session"

    def test_a_worker_has_its_arguments(self) -> None:
        """Arguments may contain any characters."""
        starter = self.begin()
        self.form(starter)
        seen = self.shown(starter, *_ODD)
        found = [os.fsdecode(bytes.fromhex(word)) for word in seen["arguments"]]
        assert found == list(_ODD), f"it has {found!r}"

    def test_a_worker_has_exactly_its_environment(self) -> None:
        """Neither that of the launcher nor that of `begin`."""
        fresh = self.shown(None)["environment"]
        starter = self.create()
        earlier = self.environment(PLAUNCH_CONFORMANCE_EARLIER="1")
        self.call("begin()", starter.begin, self.command(), earlier)
        more = {f"PLAUNCH_CONFORMANCE_{number}": value for number, value in enumerate(_ODD)}
        env = self.environment(**more)
        with mock.patch.dict(os.environ, PLAUNCH_CONFORMANCE_LATER="1"):
            self.form(starter, env)
            seen = self.shown(starter, env=env)["environment"]
        wanted = fresh | {_hex(name): _hex(value) for name, value in more.items()}
        others = {name for name in seen.keys() | wanted if seen.get(name) != wanted.get(name)}
        named = sorted(os.fsdecode(bytes.fromhex(name)) for name in others)
        assert not named, f"different from an executed worker's: {', '.join(named)}"

    def test_a_worker_has_exactly_its_descriptors(self) -> None:
        """Its three streams and `pass_fds`, with the same numbers, and no others."""
        before = _inheritable()
        starter = self.begin()
        after = _inheritable()
        given, kept = os.pipe()
        try:
            self.form(starter)
            files = self.shown(starter, pass_fds=(given,))["files"]
            assert set(files) == {"0", "1", "2", str(given)}, f"it has {sorted(map(int, files))}"
            for fd in (0, 2, given):
                assert files[str(fd)] == _inode(fd), f"its descriptor {fd} is another file"
        finally:
            for fd in (before, after, given, kept):
                os.close(fd)

    def test_a_worker_writes_where_it_should(self) -> None:
        """`stdout` and `stderr` are the descriptors passed to `start`."""
        starter = self.begin()
        self.form(starter)
        paths = [os.path.join(self.folder, name) for name in ("stdout", "stderr")]
        with contextlib.ExitStack() as stack:
            out, err = (stack.enter_context(open(path, "wb")).fileno() for path in paths)
            worker = self.start(starter, "write", stdout=out, stderr=err)
        assert self.end(worker) == 0
        for path in paths:
            with open(path) as file:
                text = file.read()
            assert text == f"to {os.path.basename(path)}", f"{path} has {text!r}"

    def test_a_helper_has_its_streams_and_its_environment(self) -> None:
        """A program of the launcher is a child that leads a session, as a worker does."""
        starter = self.begin()
        self.form(starter)
        command = [sys.executable, self.program, "show"]
        env = self.environment(PLAUNCH_CONFORMANCE_HELPER="1")
        read, write = os.pipe()
        with open(read, "rb") as reader:
            try:
                helper: Any = self.call(
                    "start_helper()",
                    starter.start_helper,
                    command,
                    env=env,
                    stdin=0,
                    stdout=write,
                    stderr=2,
                )
            finally:
                os.close(write)
            if helper is None:  # plaunch executes such programs then
                return
            self.end(helper)
            seen: dict[str, Any] = json.loads(reader.read())
        assert seen["parent"] == os.getpid(), f"it is a child of pid {seen['parent']}"
        assert seen["session"] == seen["pid"] == helper.pid, "it does not lead its own session"
        assert set(seen["files"]) == {"0", "1", "2"}, f"it has {sorted(map(int, seen['files']))}"
        wanted = {_hex(name): _hex(value) for name, value in env.items()}
        missing = [name for name, value in wanted.items() if seen["environment"].get(name) != value]
        assert not missing, f"variables differ: {missing}"

    def test_a_worker_has_the_working_folder_of_the_launcher(self) -> None:
        """It has the launcher's working folder and umask at the time of its start."""
        starter = self.begin()
        folder = os.getcwd()
        os.chdir(self.folder)
        umask = os.umask(0o027)
        try:
            self.form(starter)
            seen = self.shown(starter)
        finally:
            os.umask(umask)
            os.chdir(folder)
        assert seen["folder"] == os.path.realpath(self.folder), f"it is in {seen['folder']}"
        assert int(seen["umask"], 8) == 0o027, f"its umask is {seen['umask']}"

    def test_a_worker_has_the_limits_of_the_launcher(self) -> None:
        """It has the same limits as `ulimit` shows."""
        limits = resource.getrlimit(resource.RLIMIT_CORE)
        other = 0 if limits[0] else min(4096, _above(limits[1]))
        resource.setrlimit(resource.RLIMIT_CORE, (other, limits[1]))
        try:
            fresh = self.shown(None)["limits"]
            starter = self.begin()
            self.form(starter)
            seen = self.shown(starter)["limits"]
        finally:
            resource.setrlimit(resource.RLIMIT_CORE, limits)
        for name, wanted in fresh.items():
            assert seen[name] == wanted, (
                f"{name} is {seen[name]}, and {wanted} in an executed worker"
            )

    def test_a_worker_has_the_signals_of_a_fresh_one(self) -> None:
        """Signals that the launcher ignores are ignored, handled ones reset, and none blocked."""
        if threading.current_thread() is not threading.main_thread():
            pytest.skip("only the main thread can change signal handlers")
        handlers = {
            signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_IGN),
            signal.SIGUSR1: signal.signal(signal.SIGUSR1, lambda *_: None),
        }
        try:
            fresh = self.shown(None)
            starter = self.begin()
            self.form(starter)
            seen = self.shown(starter)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        for what in ("ignored", "blocked", "caught"):
            assert seen[what] == fresh[what], (
                f"{what}: {seen[what]}, and {fresh[what]} in an executed worker"
            )

    def test_a_worker_is_bound_before_it_begins(self) -> None:
        """By `applied` while it is started, or by `bind` before it runs."""
        starter = self.begin()
        self.form(starter)
        binding = _OneProcessor()
        seen = self.shown(starter, binding=binding)
        assert seen["processors"] == [binding.processor], f"it runs on {seen['processors']}"
        assert self.call("the thread's binding", os.sched_getaffinity, 0) == binding.all

    def test_a_failed_binding_is_an_error(self) -> None:
        """`start` raises the binding's `WorkerStartError`, and leaves no worker."""
        starter = self.begin("wait", "0")
        self.form(starter)
        options: dict[str, Any] = {"stdout": None, "stderr": None, "binding": _NoBinding()}
        command, env = self.command("wait", "0"), self.environment()
        try:
            worker = self.call("start()", starter.start, 0, command, env=env, **options)
        except WorkerStartError:
            self.close(starter)
            self.assert_gone()
        else:
            if worker is not None:
                self._workers.append(worker)
            assert worker is None, "the worker started without its binding"


class _OneProcessor:
    """Binds a worker to one processor."""

    def __init__(self) -> None:
        self.all = os.sched_getaffinity(0)
        self.processor = max(self.all)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Bind the calling thread inside the context."""
        os.sched_setaffinity(0, {self.processor})
        try:
            yield
        finally:
            os.sched_setaffinity(0, self.all)

    def bind(self, pid: int) -> None:
        """Bind a process."""
        os.sched_setaffinity(pid, {self.processor})

    def describe(self) -> dict[str, str]:
        """Describe the binding."""
        return {"cpus": str(self.processor)}


class _NoBinding:
    """A binding that fails."""

    def applied(self) -> contextlib.AbstractContextManager[None]:
        """Raise an error."""
        raise WorkerStartError("the processors do not exist")

    def bind(self, pid: int) -> None:
        """Raise an error."""
        raise WorkerStartError(f"pid {pid} cannot be bound")

    def describe(self) -> dict[str, str]:
        """Describe the binding."""
        return {}


def _hex(text: str) -> str:
    return os.fsencode(text).hex()


def _above(hard: int) -> int:
    return 4096 if hard == resource.RLIM_INFINITY else hard


def _inode(fd: int) -> list[int]:
    found = os.fstat(fd)
    return [found.st_dev, found.st_ino]


def _inheritable() -> int:
    """Open an inheritable descriptor."""
    fd = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(fd, True)
    return fd
