"""What modules read while they are imported of the process that imports them."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from .callers import find_caller, is_standard_library
from .replacements import Replacements

if TYPE_CHECKING:
    from .known import HarmlessLines

# The standard library's own modules compare these ids in a child, or renew them.
_IDS = ("getpid", "getppid", "getpgrp", "getpgid", "getsid")
# Functions of C that read what is another for each worker.
_OF_C = frozenset(
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
    """Notes the lines that read process ids, or look up functions of C that see the environment."""

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
        self._is_watching = False  # some functions that replace others may be left

    def problems(self) -> list[str]:
        """What a worker would have read with another result, in words."""
        return sorted(self._found)

    def _watch_id(self, name: str) -> None:
        read = getattr(os, name)

        def note(*args: int, **options: int) -> int:
            if (
                self._is_watching
                and self._getpid() == self._pid  # and not in a child
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
            if self._is_watching and name in _OF_C:
                self._found.add(f"{find_caller()} looks up C's {name}, whose calls are not seen")
            return look_up(library, name)

        self._replacements.replace(ctypes.CDLL, "__getitem__", note)
