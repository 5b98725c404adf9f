"""The fork server: imports modules, checks their effects, and forks workers.

The launcher sends each request with one end of a new socket, on which the worker itself answers. If
the launcher times out, it closes its end, and the process exits before it becomes a worker.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import importlib.util
import os
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from .fork_hazards import ForkHazards
from .known_lines import HarmlessLines
from .messages import VARIABLE, receive, send
from .process_state import ProcessReads, ProcessState
from .random_reads import RandomReads
from .training_modules import TRAINING_MODULES
from .variable_reads import VariableReads
from .worker import become, introduce, renew_caches, show_command, show_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_REAP_INTERVAL = 0.01  # seconds between two checks for exited processes


def run(hook: str) -> None:
    """Import and serve; only returns in a worker.

    Raises:
        ImportError: the user has no `sitecustomize`; `site` expects this error.
    """
    try:
        channel = socket.socket(fileno=int(os.environ.pop(VARIABLE)))
        channel.set_inheritable(False)
        config = receive(channel)[0] or {}
    except (KeyError, ValueError, OSError) as error:
        sys.stderr.write(f"plaunch's fork server was started by something else: {error!r}\n")
        os._exit(1)
    try:
        _remove_traces(hook, config["python_path"])
        if config["is_probe"]:
            send(channel, {"version": list(sys.version_info[:3])})
            os._exit(0)
        _die_with(config["alive"])
        users_error = _import_shadowed_sitecustomize()
        server = _Server(channel, config)
        server.load()
        server.serve()
    except BaseException as error:  # noqa: BLE001 - any error
        # To continue would run the program in a process without a launcher.
        sys.stderr.write(f"plaunch's fork server has failed: {error!r}\n")
        sys.stderr.flush()
        os._exit(1)
    if users_error is not None:
        raise users_error


def _remove_traces(hook: str, python_path: str | None) -> None:
    """Undo the changes that have started this fork server."""
    sys.path[:] = [entry for entry in sys.path if entry != hook]
    sys.path_importer_cache.pop(hook, None)
    if python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = python_path
    package = __name__.partition(".")[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def _import_shadowed_sitecustomize() -> BaseException | None:
    """Import the user's own `sitecustomize`; returns the exception that a worker has to raise."""
    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except Exception as error:  # noqa: BLE001 - `site` handles it
        sys.modules["sitecustomize"] = own
        return error
    return None


def _die_with(pipe: int) -> None:
    """Make the kernel kill this process group when the other end of a pipe is closed.

    This includes processes that modules have started, and stopped ones.
    """
    os.set_inheritable(pipe, False)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    with contextlib.suppress(OSError):  # otherwise the kernel sends SIGIO, which ends most programs
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:  # the launcher has exited already
        os._exit(1)


class _Server:
    def __init__(self, channel: socket.socket, config: Mapping[str, Any]) -> None:
        self._channel = channel
        self._config = config
        self._changes: dict[str, str | None] = {}  # changed variables
        self._umask: int | None = None  # set by a module
        self._harmless = HarmlessLines()
        self._random = RandomReads(self._harmless)
        self._files: dict[str, tuple[str, int, int]] = {}
        self._intermediates = 0  # processes that have forked a worker each, to be reaped

    def load(self) -> None:
        """Import the modules, and report the result."""
        show_name("plaunch-preload")
        show_command(["plaunch-preload", ",".join(self._config["modules"])])
        before = dict(os.environ)
        hazards = ForkHazards()
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
        problems += hazards.problems()
        problems += [*state.problems(), *reads.problems(), *self._random.problems()]
        self._umask = state.read_umask()
        self._harmless.clean_up()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        gc.collect()
        gc.freeze()  # so that garbage collection in a worker does not copy shared memory
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
        """Fork workers until the launcher closes the channel; only returns in a worker."""
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
        """Fork a worker that is the launcher's child; True in the worker."""
        try:
            intermediate = os.fork()
        except OSError as error:
            _report_failed_fork(error)
            os.close(fd)  # which the launcher detects
            return False
        if intermediate:
            os.close(fd)
            self._intermediates += 1
            return False
        intermediate = os.getpid()
        try:
            if os.fork():
                os._exit(0)
        except OSError as error:
            _report_failed_fork(error)
            os._exit(1)
        self._channel.close()
        with socket.socket(fileno=fd) as own:
            message, fds = introduce(own, intermediate)
            os.close(self._config["alive"])
            try:
                become(message, fds, self._changes, self._umask)
                renew_caches()
                self._random.seed_anew()
                self._harmless.renew()
            except BaseException as error:  # noqa: BLE001 - reported to the launcher
                send(own, {"error": f"{type(error).__name__}: {error}"})
                os._exit(1)
            send(own, {"error": ""})
        if message["helper"]:
            _run_helper(message["helper"])
        return True

    def _reap(self) -> None:
        """Reap the intermediate processes while there is no request."""
        while self._intermediates and not select.select([self._channel], [], [], _REAP_INTERVAL)[0]:
            try:
                while self._intermediates and os.waitpid(-1, os.WNOHANG)[0]:
                    self._intermediates -= 1
            except ChildProcessError:  # a module ignores SIGCHLD, so the system reaps them
                self._intermediates = 0

    def _path_length(self) -> int | None:
        """The number of entries at the front of `sys.path` that a worker resets; None for all."""
        if self._config["is_function"]:  # multiprocessing sets the path of the launcher
            return None
        if self._config["script"] and getattr(sys.flags, "safe_path", False):
            return 0
        return len(self._config["path"])

    def _find_changed(self) -> list[str]:
        """Return the modules whose files have changed since their import."""
        return sorted(name for name, file in self._files.items() if _stat(file[0]) != file)

    def _import(self, name: str) -> str:
        """Import one module, and those that a training with it needs.

        Returns:
            The problem; empty if there is none.
        """
        script = self._config["script"]
        try:
            spec = importlib.util.find_spec(name.partition(".")[0])
            origin = None if spec is None else spec.origin
            if script and origin and os.path.realpath(origin) == os.path.realpath(script):
                return f"{name} is the script itself"
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - also SystemExit
            return f"{name} cannot be imported: {type(error).__name__}: {error}"
        for later in TRAINING_MODULES.get(name, ()):
            # This version may not have it, and a worker may not need it.
            with contextlib.suppress(Exception):
                importlib.import_module(later)
        return ""


def _run_helper(program: str) -> NoReturn:
    """Run another program than the workers', and exit as an interpreter does."""
    code: object = 1
    try:
        runpy.run_path(program, run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:  # noqa: BLE001 - printed, as by an interpreter
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _report_failed_fork(error: OSError) -> None:
    sys.stderr.write(f"plaunch's fork server cannot fork: {error}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _as_program(path: Sequence[str], script: str) -> Iterator[None]:
    """Import as the program would: with its folders, and with a file of `__main__`.

    Without that file, modules would assume an interactive interpreter.
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
    """Return the files of all modules, with their times and sizes."""
    # Accessing an attribute of a lazy module would import it.
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
