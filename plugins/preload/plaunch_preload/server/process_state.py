"""Detects reads of process ids during imports, and changes to the process that a fork loses."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from .known_lines import find_caller, is_standard_library
from .replacements import Replacements

if TYPE_CHECKING:
    from collections.abc import Callable

    from .known_lines import HarmlessLines

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_PR_GET_PDEATHSIG = 2
_FOLDER = "changes the working folder, in which Python would look for the program"
_TIMER = "sets a timer, which a fork does not inherit"
# Functions whose callers are recorded, by what they may change.
_CHANGING: dict[str, tuple[tuple[Any, str], ...]] = {
    _FOLDER: ((os, "chdir"), (os, "fchdir")),
    _TIMER: ((signal, "setitimer"), (signal, "alarm")),
}
# The standard library's own modules compare these ids in a child, or renew them.
_IDS = ("getpid", "getppid", "getpgrp", "getpgid", "getsid")
# C functions whose results differ between workers.
_C_FUNCTIONS = frozenset(
    (
        "arc4random",
        "getenv",
        "getpgrp",
        "getpid",
        "getppid",
        "getrandom",
        "gettid",
        "secure_getenv",
    )
)


class ProcessState:
    """Compares the process before and after the imports.

    Args:
        path_length: the number of entries at the front of `sys.path` that are set again in a
            worker; None for all of them.
    """

    def __init__(self, path_length: int | None) -> None:
        self._path_length = path_length
        self._replacements = Replacements()
        self._callers: dict[str, str] = {}  # the last callers, by what they may have changed
        self._before: dict[str, object] = {}
        self._found: dict[str, str] = {}  # the changes, and the module or line
        self._umask = _read_status("Umask")

    def __enter__(self) -> ProcessState:
        self._before = self._read()
        for what, functions in _CHANGING.items():
            for owner, name in functions:
                self._watch(what, owner, name)
        return self

    def __exit__(self, *error: object) -> None:
        self._replacements.restore()

    def note_import(self, name: str) -> None:
        """Compare after the import of a module."""
        for what, value in self._read().items():
            if value != self._before[what]:
                self._found.setdefault(what, self._callers.get(what, name))

    def problems(self) -> list[str]:
        """Return the changes that workers would not have."""
        return [f"{who} {what}" for what, who in self._found.items()]

    def read_umask(self) -> int | None:
        """Return the umask that a module has set, which workers keep; None if unchanged."""
        umask = _read_status("Umask")
        return None if umask == self._umask else int(umask, 8)

    def _read(self) -> dict[str, object]:
        streams = [_describe_stream(name) for name in ("stdin", "stdout", "stderr")]
        return {
            _FOLDER: os.readlink("/proc/self/cwd"),
            _TIMER: [signal.getitimer(timer) != (0.0, 0.0) for timer in _TIMERS] + [_has_timers()],
            "changes sys.argv, which is set again in a worker": list(sys.argv),
            "changes what is set again in sys.path in a worker": sys.path[: self._path_length],
            "changes sys.stdin, sys.stdout or sys.stderr, which are renewed in a worker": streams,
            "locks memory, which a fork does not inherit": _read_status("VmLck"),
            "sets the signal for the end of its parent, which a fork does not inherit": (
                _read_parent_death_signal()
            ),
        }

    def _watch(self, what: str, owner: Any, name: str) -> None:
        change: Callable[..., Any] = getattr(owner, name)

        def note(*args: Any, **options: Any) -> Any:
            self._callers[what] = find_caller()
            return change(*args, **options)

        self._replacements.replace(owner, name, note)


def _has_timers() -> bool:
    """Whether there are timers of `timer_create`; False if the kernel does not show them."""
    try:
        with open("/proc/self/timers") as file:
            return bool(file.read())
    except OSError:
        return False


def _read_status(name: str) -> str:
    with open("/proc/self/status") as file:
        lines = [line.split(":", 1)[1] for line in file if line.startswith(f"{name}:")]
    return lines[0].strip() if lines else ""


def _read_parent_death_signal() -> int:
    number = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0)
    return number.value


def _describe_stream(name: str) -> tuple[object, ...]:
    stream = getattr(sys, name)
    settings = ("line_buffering", "write_through")
    return (id(stream), *(getattr(stream, setting, None) for setting in settings))


class ProcessReads:
    """Records lines that read process ids, or look up C functions that read the environment."""

    def __init__(self, harmless: HarmlessLines) -> None:
        self._harmless = harmless
        self._replacements = Replacements()
        self._found: set[str] = set()
        self._getpid = os.getpid
        self._pid = os.getpid()
        self._is_watching = False

    def __enter__(self) -> ProcessReads:
        self._is_watching = True
        for name in _IDS:
            self._watch_id(name)
        self._watch_lookups()
        return self

    def __exit__(self, *error: object) -> None:
        self._replacements.restore()
        self._is_watching = False  # some replacements may remain

    def problems(self) -> list[str]:
        """Return the reads whose results differ in a worker."""
        return sorted(self._found)

    def _watch_id(self, name: str) -> None:
        read = getattr(os, name)

        def note(*args: int, **options: int) -> int:
            if (
                self._is_watching
                and self._getpid() == self._pid  # not in a child
                and not is_standard_library()
                and not self._harmless.is_running()
            ):
                self._found.add(f"{find_caller()} calls os.{name}, which differs between workers")
            found: int = read(*args, **options)
            return found

        self._replacements.replace(os, name, note)

    def _watch_lookups(self) -> None:
        look_up = ctypes.CDLL.__getitem__

        def note(library: Any, name: Any) -> Any:
            if self._is_watching and name in _C_FUNCTIONS:
                self._found.add(f"{find_caller()} looks up C's {name}, whose calls are not seen")
            return look_up(library, name)

        self._replacements.replace(ctypes.CDLL, "__getitem__", note)
