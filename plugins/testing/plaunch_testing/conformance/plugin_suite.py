"""The base class of the suites that need a single node, and checks of a plugin's effects."""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pytest
from plaunch import LaunchConfig
from plaunch.errors import UsageError
from plaunch.plugin import PluginContext
from plaunch.process import list_numbers, read_link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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
_IMPORT_TIMEOUT = 60.0  # seconds; a busy machine may take long to read files
_IMPORT = """\
import importlib, sys
sys.path[:] = {path!r}
importlib.import_module({module!r})
print("loaded", *({{"torch"}} & set(sys.modules)))
"""


class OwnThread:
    """A thread that makes calls one after the other, each with a time limit."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="conformance", daemon=True).start()

    def call(self, seconds: float, what: str, function: Callable[[], T]) -> T:
        """Return the result of `function`, or raise its exception; fail after `seconds`."""
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
        """End the thread after its last call."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def within(seconds: float, what: str, function: Callable[[], T]) -> T:
    """Call `function` on a new thread and return its result; fail after `seconds`."""
    thread = OwnThread()
    try:
        return thread.call(seconds, what, function)
    finally:
        thread.end()


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Accept a `UsageError` with a message; any other exception fails the test."""
    try:
        yield
    except UsageError as error:
        if not str(error):
            pytest.fail("its UsageError has no message")


@contextlib.contextmanager
def imports() -> Iterator[list[str]]:
    """Record the top-level packages that are imported, including those already loaded."""
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
def unchanged_process() -> Iterator[None]:
    """Fail if the environment, folder, signal handlers or socket time-outs have changed after."""
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
    """Return the open descriptors of this process."""
    found = set()
    for fd in list_numbers("self/fd"):
        with contextlib.suppress(OSError):  # that of the listing, closed by now
            os.fstat(fd)
            found.add(fd)
    return found


def inherited(before: set[int]) -> list[str]:
    """Return the files opened since `before` that workers would inherit."""
    return [_name_of(fd) for fd in sorted(descriptors() - before) if os.get_inheritable(fd)]


def opened(before: set[int]) -> list[str]:
    """Return the files opened since `before` that are still open.

    Connections that a server has accepted which had listened before are left out: it is a part of
    the test, not of the plugin.
    """
    servers = {address for fd in before if (address := _address(fd, is_server=True))}
    return [
        _name_of(fd)
        for fd in sorted(descriptors() - before)
        if _address(fd, is_server=False) not in servers
    ]


def _address(fd: int, *, is_server: bool) -> object:
    """Return the port or the path of a socket that listens, or of another one; None if neither."""
    if not _name_of(fd).startswith("socket:"):
        return None
    try:
        with socket.socket(fileno=os.dup(fd)) as sock:
            listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            name: object = sock.getsockname()
    except OSError:  # it was closed meanwhile
        return None
    if bool(listens) is not is_server:
        return None
    return name[1] if isinstance(name, tuple) else name


def _name_of(fd: int) -> str:
    return read_link(f"self/fd/{fd}") or f"descriptor {fd}"


class Audit:
    """Records the files that this process opens, and its use of network and programs."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.services: list[str] = []
        self._is_on = False
        sys.addaudithook(self._record)  # cannot be removed

    def __enter__(self) -> Audit:
        self._is_on = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_on = False

    def _record(self, event: str, args: tuple[object, ...]) -> None:
        if not self._is_on:
            return
        if event in _OPENING:
            path = args[0]
            if isinstance(path, bytes | str | os.PathLike):
                self.files.append(os.fsdecode(path))
        elif event in _SERVICES:
            self.services.append(f"{event}{args[:2]!r}")


class PluginSuite:
    """The interface of the suites, and the checks for every kind of plugin."""

    seconds: ClassVar[float] = 5.0  # for each call
    module: ClassVar[str] = ""  # imported by a launch; default: the plugin's own
    is_for_torch: ClassVar[bool] = False  # whether it was written for torchrun, and imports torch
    settings: ClassVar[Mapping[str, object]] = {}  # changed fields of the launch
    options: ClassVar[Mapping[str, object]] = {}  # the plugin's options

    def plugin(self) -> Any:
        """Return the object that the plugin's name refers to; override this."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _surroundings(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folder = str(tmp_path_factory.mktemp("conformance"))
        self.files_before = descriptors()

    @functools.cached_property
    def thing(self) -> Any:
        """The plugin, looked up once for each test."""
        return self.plugin()

    def context(self, **changes: Any) -> PluginContext:
        """Return the context of a launch with logs in a folder of this test."""
        settings = {**LaunchConfig(1, 1, 2).settings(), **self.settings}
        run_dir = os.path.join(self.folder, "conformance_0")
        os.makedirs(run_dir, exist_ok=True)
        fields: dict[str, Any] = {
            "run_id": "conformance",
            "role": "default",
            "host": "node0",
            "log_dir": self.folder,
            "run_dir": run_dir,
            "settings": {**settings, "run_id": "conformance"},
            "options": dict(self.options),
        }
        return PluginContext(**{**fields, **changes})

    def call(self, what: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function of the plugin on a new thread; fail after `seconds`."""
        return within(self.seconds, what, lambda: function(*args, **kwargs))

    def use_once(self) -> object:
        """Use the plugin as a launch does, and return what must stay open."""
        raise NotImplementedError

    def end_use(self) -> None:
        """Clean up after `use_once` as the end of a launch does."""

    def test_importing_it_does_not_import_torch(self) -> None:
        """A launch imports the modules of selected plugins, and importing torch takes seconds."""
        if self.is_for_torch:
            pytest.skip("it was written for torchrun, and imports torch")
        # `thing` may be a module itself.
        module = self.module or getattr(self.thing, "__module__", "") or self.thing.__name__
        done = subprocess.run(  # noqa: PLW1510 - checked below
            [sys.executable, "-c", _IMPORT.format(path=sys.path, module=module)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT,
        )
        if f"No module named {module!r}" in done.stderr:
            pytest.skip(f"module {module!r} is a test file, which other processes cannot import")
        assert done.returncode == 0, f"module {module!r} cannot be imported:\n{done.stderr}"
        assert "loaded torch" not in done.stdout, f"importing {module!r} imports torch"

    def test_using_it_does_not_import_torch(self) -> None:
        """The launcher runs without torch."""
        if self.is_for_torch:
            pytest.skip("it was written for torchrun, and imports torch")
        assert self.thing is not None  # look it up before watching imports
        with imports() as names:
            self.use_once()
            self.end_use()
        assert "torch" not in names, "it imports torch in the launcher"

    def test_it_leaves_the_process_as_it_was(self) -> None:
        """It does not change the environment, working folder or signal handlers of workers."""
        with unchanged_process():
            self.use_once()

    def test_workers_inherit_nothing_from_it(self) -> None:
        """Its files and sockets are close-on-exec."""
        used = self.use_once()
        found = inherited(self.files_before)
        assert not found, f"workers inherit {found}"
        del used
