"""The fork server itself: imports modules, looks at what they have left, and forks workers.

The launcher sends each request with one end of a new socket, on which the worker speaks for itself.
A launcher that has lost patience closes its end, and the worker is gone before it was anybody.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import importlib.util
import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from . import title, worker
from .belongings import Belongings
from .known import HarmlessLines
from .messages import VARIABLE, receive, send
from .process_reads import ProcessReads
from .process_state import ProcessState
from .random_reads import RandomReads
from .reads import VariableReads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_REAP_LOOK = 0.01  # seconds between two looks at processes that are about to end


def run(hook: str) -> None:
    """Import and serve; returns in a worker only.

    Raises:
        ImportError: there is no `sitecustomize` of the user's; `site` expects that.
    """
    try:
        channel = socket.socket(fileno=int(os.environ.pop(VARIABLE)))
        channel.set_inheritable(False)
        config = receive(channel)[0] or {}
    except (KeyError, ValueError, OSError) as error:
        sys.stderr.write(f"plaunch's fork server was started by something else: {error!r}\n")
        os._exit(1)
    try:
        _forget(hook, config["python_path"])
        if config["is_probe"]:
            send(channel, {"version": list(sys.version_info[:3])})
            os._exit(0)
        _end_with(config["alive"])
        users_error = _import_users_own()
        server = _Server(channel, config)
        server.load()
        server.serve()
    except BaseException as error:  # noqa: BLE001 - whatever it is
        # Going on would run the program, once, as nobody's worker.
        sys.stderr.write(f"plaunch's fork server has failed: {error!r}\n")
        sys.stderr.flush()
        os._exit(1)
    if users_error is not None:
        raise users_error


def _forget(hook: str, python_path: str | None) -> None:
    """Take away what only served to get here."""
    sys.path[:] = [entry for entry in sys.path if entry != hook]
    sys.path_importer_cache.pop(hook, None)
    if python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = python_path
    package = __name__.partition(".")[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def _import_users_own() -> BaseException | None:
    """Import the `sitecustomize` that this one stands before; what a worker has to raise for it."""
    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except Exception as error:  # noqa: BLE001 - `site` judges it
        sys.modules["sitecustomize"] = own
        return error
    return None


def _end_with(pipe: int) -> None:
    """Let this process end when the other end of a pipe is closed, whatever it does meanwhile.

    The kernel kills its whole group then: also what modules have started, and one that is stopped.
    """
    os.set_inheritable(pipe, False)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    with contextlib.suppress(OSError):  # what the kernel sends else is SIGIO, which ends most
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:  # the launcher has ended already
        os._exit(1)


class _Server:
    def __init__(self, channel: socket.socket, config: Mapping[str, Any]) -> None:
        self._channel = channel
        self._config = config
        self._changes: dict[str, str | None] = {}  # of variables, by the modules
        self._umask: int | None = None  # that modules have set
        self._harmless = HarmlessLines()
        self._random = RandomReads(self._harmless)
        self._files: dict[str, tuple[str, int, int]] = {}
        self._between = 0  # processes that have forked a worker each, and have to be reaped

    def load(self) -> None:
        """Import the modules, and say how that went."""
        title.show_name("plaunch-preload")
        title.show_command(["plaunch-preload", ",".join(self._config["modules"])])
        before = dict(os.environ)
        belongings = Belongings()
        variables = VariableReads()
        seconds: dict[str, float] = {}
        problems: list[str] = []
        as_program = _as_program(self._config["path"], self._config["script"])
        reads = ProcessReads(self._harmless)
        with as_program, ProcessState(self._path_length()) as state, variables, self._random, reads:
            for name in self._config["modules"]:
                began = time.monotonic()
                problem = self._import(name)
                seconds[name] = time.monotonic() - began
                self._random.note_import(name)
                state.note_import(name)
                if problem:
                    problems.append(problem)
                    break
        for name in before.keys() | os.environ.keys():
            if before.get(name) != os.environ.get(name):
                self._changes[name] = os.environ.get(name)
        problems += belongings.problems()
        problems += [*state.problems(), *reads.problems(), *self._random.problems()]
        self._umask = state.read_umask()
        self._harmless.clean_up()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        gc.collect()
        gc.freeze()  # so that a collection in a worker does not copy the memory that it looks at
        self._files = _find_files()
        send(
            self._channel,
            {
                "seconds": seconds,
                "problems": problems,
                "variables": variables.names,
                "prefixes": variables.prefixes,
                "readers_of_all": sorted(variables.readers_of_all),
            },
        )

    def serve(self) -> None:
        """Fork until the launcher has enough; returns in a worker."""
        while True:
            self._reap()
            message, fds = receive(self._channel)
            if message is None:
                os._exit(0)
            if message["wanted"] == "changes":
                send(self._channel, {"changed": self._find_changed()})
            for fd in fds:
                if self._fork(fd):
                    return

    def _fork(self, fd: int) -> bool:
        """Fork a worker that is the launcher's child; whether this process is that worker."""
        try:
            between = os.fork()
        except OSError as error:
            _say_that_no_fork(error)
            os.close(fd)  # which the launcher notices
            return False
        if between:
            os.close(fd)
            self._between += 1
            return False
        between = os.getpid()
        try:
            if os.fork():
                os._exit(0)
        except OSError as error:
            _say_that_no_fork(error)
            os._exit(1)
        self._channel.close()
        with socket.socket(fileno=fd) as own:
            message, fds = worker.introduce(own, between)
            os.close(self._config["alive"])
            try:
                worker.become(message, fds, self._changes, self._umask)
                self._random.seed_anew()
                self._harmless.renew()
            except BaseException as error:  # noqa: BLE001 - the launcher is told
                send(own, {"error": f"{type(error).__name__}: {error}"})
                os._exit(1)
            send(own, {"error": ""})
        return True

    def _reap(self) -> None:
        """Let the system forget the processes in between; the launcher does not wait for that."""
        while self._between and not select.select([self._channel], [], [], _REAP_LOOK)[0]:
            try:
                while self._between and os.waitpid(-1, os.WNOHANG)[0]:
                    self._between -= 1
            except ChildProcessError:  # a module has SIGCHLD ignored, by which the system does it
                self._between = 0

    def _path_length(self) -> int | None:
        """How many entries of `sys.path`, at its front, a worker sets again; None for all."""
        if self._config["is_function"]:  # multiprocessing sets the path of the launcher
            return None
        if self._config["script"] and getattr(sys.flags, "safe_path", False):
            return 0
        return len(self._config["path"])

    def _find_changed(self) -> list[str]:
        """The modules whose files are others than they were when they were imported."""
        return sorted(name for name, file in self._files.items() if _stat(file[0]) != file)

    def _import(self, name: str) -> str:
        """Import one module; what is wrong with it, or nothing."""
        script = self._config["script"]
        try:
            spec = importlib.util.find_spec(name.partition(".")[0])
            origin = None if spec is None else spec.origin
            if script and origin and os.path.realpath(origin) == os.path.realpath(script):
                return f"{name} is the script itself"
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - also SystemExit
            return f"{name} cannot be imported: {type(error).__name__}: {error}"
        return ""


def _say_that_no_fork(error: OSError) -> None:
    sys.stderr.write(f"plaunch's fork server cannot fork: {error}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _as_program(path: Sequence[str], script: str) -> Iterator[None]:
    """Import as the program would: from its folders, and with a file of `__main__`.

    Without that file, modules would think that somebody types at a prompt.
    """
    main: Any = sys.modules["__main__"]
    added = [] if getattr(sys.flags, "safe_path", False) and script else list(path)
    before = list(sys.path)
    sys.path[:] = [*added, *(entry for entry in before if entry not in added)]
    if script:
        main.__file__ = script
    try:
        yield
    finally:
        if script:
            del main.__file__
        for entry in added:
            if entry not in before and entry in sys.path:
                sys.path.remove(entry)


def _find_files() -> dict[str, tuple[str, int, int]]:
    """The files of all modules, with what tells whether they are still the same."""
    # Asking a lazy module itself would import it.
    namespaces = {name: _namespace(module) for name, module in list(sys.modules.items())}
    paths = {name: names.get("__file__") for name, names in namespaces.items()}
    files = {name: _stat(path) for name, path in paths.items() if isinstance(path, str)}
    return {name: file for name, file in files.items() if file is not None}


def _namespace(module: object) -> dict[str, Any]:
    try:
        found = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _stat(path: str) -> tuple[str, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return path, status.st_mtime_ns, status.st_size
