"""What the code under test gets instead of `time`, `threading`, `select`, `os` and others.

`install` must run before any module of plaunch is imported, because some bind functions of these
modules as defaults. So a simulation has an interpreter of its own. Modules of the standard library
that were imported before keep the real ones.
"""

from __future__ import annotations

import atexit
import importlib
import os
import random
import secrets
import select
import signal
import socket
import sys
import threading
import time
import types
from typing import TYPE_CHECKING, Any

from plaunch_testing.simulation.descriptors import DescriptorTable
from plaunch_testing.simulation.hub import EPOCH, SimulationError
from plaunch_testing.simulation.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_testing.simulation.hub import Hub, SimulatedProcess

__all__ = ["SimulatedSystem", "install"]

# What plaunch imports of the standard library, and what must have the real modules.
_IMPORTED_FIRST = (
    "argparse", "ast", "asyncio", "base64", "collections", "concurrent.futures", "contextlib",
    "contextvars", "copy", "ctypes", "dataclasses", "datetime", "difflib", "email.parser", "enum",
    "errno", "fcntl", "faulthandler", "functools", "hashlib", "heapq", "hmac", "http.client",
    "http.server", "importlib.metadata", "inspect", "io", "ipaddress", "itertools", "json",
    "linecache",
    "logging.handlers", "math", "mmap", "multiprocessing.connection", "multiprocessing.util",
    "multiprocessing.shared_memory", "pickle", "platform", "queue", "re", "resource", "runpy",
    "selectors", "shlex", "shutil", "socketserver", "ssl", "stat", "statistics", "string", "struct",
    "subprocess", "tempfile", "termios", "textwrap", "traceback", "typing", "unittest.mock",
    "urllib.parse", "urllib.request", "uuid", "weakref", "zlib",
)  # fmt: skip


class SimulatedSystem:
    """The operating system of all simulated processes.

    Args:
        hub: has the clock and the tasks.
    """

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.descriptors = DescriptorTable(hub)
        self._handlers: dict[SimulatedProcess, dict[int, Any]] = {}
        self._wakeup_fds: dict[SimulatedProcess, int] = {}

    def begin(self) -> None:
        """Forget the processes of the last run."""
        self.descriptors.clear()
        self._handlers.clear()
        self._wakeup_fds.clear()

    @property
    def process(self) -> SimulatedProcess | None:
        """The process of the current task."""
        task = self.hub.current
        return None if task is None else task.process

    # --- clocks -----------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """The monotonic clock of the current host, in seconds."""
        hub = self.hub
        task = hub.current
        if task is None or task.process is None:
            return hub.now
        host = task.process.host
        return host.uptime + hub.now * host.rate

    def time(self) -> float:
        """The wall clock of the current host, in seconds since the epoch."""
        process = self.process
        offset = 0.0 if process is None else process.host.offset
        return EPOCH + self.hub.now + offset

    # --- identities -------------------------------------------------------------------------------

    def hostname(self) -> str:
        """The name of the current host."""
        process = self.process
        return "world" if process is None else process.host.name

    def pid(self) -> int:
        """The id of the current process."""
        process = self.process
        return os.getpid() if process is None else process.pid

    # --- signals ----------------------------------------------------------------------------------

    def set_handler(self, signum: int, handler: Any) -> Any:
        """Set the handler of a signal in the current process, and return the former one."""
        process = self.process
        if process is None:
            raise SimulationError("a handler of a signal was set outside of a process")
        if self.hub.current is not process.main:
            raise ValueError("signal only works in main thread of the main interpreter")
        handlers = self._handlers.setdefault(process, {})
        former = self.handler(signum)
        handlers[signum] = handler
        return former

    def handler(self, signum: int) -> Any:
        """Return the handler of a signal in the current process."""
        process = self.process
        usual = signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL
        return usual if process is None else self._handlers.get(process, {}).get(signum, usual)

    def set_wakeup_fd(self, fd: int, *, warn_on_full_buffer: bool = True) -> int:
        """Set the descriptor to which numbers of signals are written; return the former one."""
        process = self.process
        if process is None:
            raise SimulationError("a wakeup descriptor was set outside of a process")
        former = self._wakeup_fds.get(process, -1)
        self._wakeup_fds[process] = fd
        return former

    def deliver(self, process: SimulatedProcess, signum: signal.Signals) -> None:
        """Send a signal to a process; without a handler, one that ends it does."""
        handler = self._handlers.get(process, {}).get(signum, signal.SIG_DFL)
        if not process.is_alive or handler == signal.SIG_IGN:
            return
        if handler == signal.SIG_DFL:
            self.hub.kill(process)
            return
        fd = self._wakeup_fds.get(process, -1)
        if fd >= 0:
            self.descriptors.write(fd, bytes([signum]))
        self.hub.interrupt(process.main, lambda: handler(signum, None))


def install(hub: Hub) -> SimulatedSystem:
    """Replace modules of the standard library, for modules that are imported from now on.

    Raises:
        SimulationError: plaunch has been imported already.
    """
    early = sorted(name for name in sys.modules if name == "plaunch" or name.startswith("plaunch."))
    if early:
        raise SimulationError(
            f"{early[0]} was imported before the simulator was installed, and has the real clock; "
            "run simulations in an interpreter of their own"
        )
    for name in _IMPORTED_FIRST:
        importlib.import_module(name)
    system = SimulatedSystem(hub)
    descriptors = system.descriptors
    _replace(
        time,
        monotonic=system.monotonic,
        monotonic_ns=lambda: int(system.monotonic() * 1e9),
        perf_counter=system.monotonic,
        process_time=system.monotonic,
        time=system.time,
        time_ns=lambda: int(system.time() * 1e9),
        sleep=hub.sleep,
    )
    _replace(threading, **Primitives(hub).names())
    _replace(select, poll=descriptors.poll)
    _replace(
        os,
        pipe2=lambda _: descriptors.pipe(),
        pipe=descriptors.pipe,
        read=descriptors.read,
        write=descriptors.write,
        close=descriptors.close,
        getpid=system.pid,
        urandom=_draw(hub, "randbytes"),
    )
    _replace(socket, gethostname=system.hostname)
    names = ("random", "uniform", "choice", "randrange", "randint")
    _replace(random, **{name: _draw(hub, name) for name in names})
    _replace(
        secrets,
        token_bytes=lambda count=32: hub.random.randbytes(count),
        token_hex=lambda count=32: hub.random.randbytes(count).hex(),
    )
    _replace(
        signal,
        signal=system.set_handler,
        getsignal=system.handler,
        set_wakeup_fd=system.set_wakeup_fd,
        pthread_sigmask=lambda how, mask: set(),
    )
    _replace(atexit, register=lambda *_, **__: None, unregister=lambda _: None)
    return system


def _draw(hub: Hub, name: str) -> Callable[..., Any]:
    """Return a function of the source of random numbers of the present run."""

    def draw(*args: Any) -> Any:
        return getattr(hub.random, name)(*args)

    return draw


def _replace(real: types.ModuleType, **names: Callable[..., Any] | object) -> None:
    replaced = types.ModuleType(real.__name__, real.__doc__)
    replaced.__dict__.update(real.__dict__)
    replaced.__dict__.update(names)
    sys.modules[real.__name__] = replaced
