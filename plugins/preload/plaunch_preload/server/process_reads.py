"""Detects reads of process ids during imports."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from .callers import find_caller, is_standard_library
from .replacements import Replacements

if TYPE_CHECKING:
    from .known_lines import HarmlessLines

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
