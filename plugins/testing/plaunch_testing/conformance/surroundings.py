"""Checks what a plugin does to the process that it runs in."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import os
import queue
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from plaunch.errors import UsageError
from plaunch.process import list_numbers, read_link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    T = TypeVar("T")

_OPENING = frozenset({"open", "os.listdir", "os.scandir"})
_SERVICES = (
    "socket.connect",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "socket.sendto",
    "subprocess.Popen",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.system",
)


class OwnThread:
    """A thread on which calls are made one after the other, each within a bound."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="conformance", daemon=True).start()

    def call(self, seconds: float, what: str, function: Callable[[], T]) -> T:
        """Return what `function` does, or raise what it raises; fails if it takes longer."""
        results: list[T] = []
        errors: list[BaseException] = []
        is_done = threading.Event()

        def run() -> None:
            try:
                results.append(function())
            except BaseException as error:  # noqa: BLE001 - raised again below
                errors.append(error)
            is_done.set()

        self._calls.put(run)
        if not is_done.wait(seconds):
            pytest.fail(f"{what} takes more than {seconds:g} s")
        if errors:
            raise errors[0]
        return results[0]

    def end(self) -> None:
        """Let the thread end, once it is done with its calls."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def within(seconds: float, what: str, function: Callable[[], T]) -> T:
    """Call `function` on a thread of its own and return what it does; fails if it takes longer."""
    thread = OwnThread()
    try:
        return thread.call(seconds, what, function)
    finally:
        thread.end()


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """A `UsageError` that says something may come out of it; any other exception is a fault."""
    try:
        yield
    except UsageError as error:
        if not str(error):
            pytest.fail("its UsageError says nothing")


@contextlib.contextmanager
def imports() -> Iterator[list[str]]:
    """The names of all top-level packages that are imported meanwhile, also of those loaded."""
    names: list[str] = []
    original, original_by_name = builtins.__import__, importlib.import_module

    def by_statement(name: str, *args: Any, **kwargs: Any) -> Any:
        level = kwargs.get("level", args[3] if len(args) > 3 else 0)
        if not level:
            names.append(name.partition(".")[0])
        return original(name, *args, **kwargs)

    def by_name(name: str, package: str | None = None) -> Any:
        names.append(name.partition(".")[0])
        return original_by_name(name, package)

    builtins.__import__ = by_statement
    importlib.import_module = by_name
    try:
        yield names
    finally:
        builtins.__import__ = original
        importlib.import_module = original_by_name


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """Fails if environment, folder, signal handlers or socket time-outs are others afterwards."""
    before = _state()
    yield
    for what, value in _state().items():
        assert value == before[what], f"it changes {what} of the launcher"


def _state() -> dict[str, object]:
    return {
        "the environment": dict(os.environ),
        "the current folder": os.getcwd(),
        "the signal handlers": {number: signal.getsignal(number) for number in _catchable()},
        "the default time-out of sockets": socket.getdefaulttimeout(),
    }


def _catchable() -> set[int]:
    return {int(number) for number in signal.valid_signals()} - {signal.SIGKILL, signal.SIGSTOP}


def descriptors() -> set[int]:
    """The open files of this process."""
    found = set()
    for fd in list_numbers("self/fd"):
        with contextlib.suppress(OSError):  # the one of the listing itself is closed by now
            os.fstat(fd)
            found.add(fd)
    return found


def inherited(before: set[int]) -> list[str]:
    """What workers would inherit of the files that were opened since."""
    return [_name_of(fd) for fd in sorted(descriptors() - before) if os.get_inheritable(fd)]


def opened(before: set[int]) -> list[str]:
    """The files that were opened since, and still are."""
    return [_name_of(fd) for fd in sorted(descriptors() - before)]


def _name_of(fd: int) -> str:
    return read_link(f"self/fd/{fd}") or f"descriptor {fd}"


class Audit:
    """Notes the files and the services that this process asks for while it is entered."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.services: list[str] = []
        self._is_on = False
        sys.addaudithook(self._hear)  # which nothing can remove

    def __enter__(self) -> Audit:
        self._is_on = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_on = False

    def _hear(self, event: str, args: tuple[object, ...]) -> None:
        if not self._is_on:
            return
        if event in _OPENING:
            path = args[0]
            if isinstance(path, bytes | str | os.PathLike):
                self.files.append(os.fsdecode(path))
        elif event in _SERVICES:
            self.services.append(f"{event}{args[:2]!r}")
