"""Finds the line that is responsible for a call during an import."""

from __future__ import annotations

import linecache
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .known_lines import KnownLine

# Modules of the standard library that may be between the responsible line and the call.
_BETWEEN = frozenset(
    (
        "_collections_abc",
        "collections.abc",
        "ctypes",
        "importlib",
        "os",
        "random",
        "secrets",
        "tempfile",
        "uuid",
    )
)
_PACKAGE = __name__.rpartition(".")[0]


def find_caller() -> str:
    """Return the module and line of the caller, as in `torch.jit._state:29`."""
    frame = _find_frame()
    return "?" if frame is None else f"{_module_of(frame)}:{frame.f_lineno}"


def is_standard_library() -> bool:
    """Whether the caller is a module of the standard library."""
    frame: Any = sys._getframe(1)
    while frame is not None and _module_of(frame).rpartition(".")[0] == _PACKAGE:
        frame = frame.f_back
    return frame is not None and _module_of(frame).partition(".")[0] in sys.stdlib_module_names


def _find_frame() -> Any:
    frame: Any = sys._getframe(1)
    while frame is not None and _is_between(_module_of(frame)):
        frame = frame.f_back
    return frame


def _module_of(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", ""))


def find_known(table: Mapping[str, Sequence[KnownLine]]) -> tuple[KnownLine, Any] | None:
    """Return the entry of a line that is running, and the frame of the line."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        for known in table.get(_module_of(frame), ()):
            if known.text in _lines_of(frame):
                return known, frame
        frame = frame.f_back
    return None


def _lines_of(frame: Any) -> str:
    """Return the current line and its neighbours.

    Python versions report different lines of a statement of several lines.
    """
    code, line = frame.f_code, frame.f_lineno
    return "".join(
        linecache.getline(code.co_filename, number, frame.f_globals)
        for number in range(line - 1, line + 2)
    )


def _is_between(module: str) -> bool:
    return module in _BETWEEN or module.rpartition(".")[0] == _PACKAGE
