"""Detects the variables that modules read during imports."""

from __future__ import annotations

import os
from typing import Any

from .known_lines import FILTERED_READS, find_caller, find_known
from .replacements import Replacements


class VariableReads:
    """Records which variables are read during imports, and where.

    Attributes:
        names: the first line that has read a variable, by its name.
        prefixes: the first line that has read all variables with a prefix, by the prefix.
        readers_of_all: the lines that have read all variables.
    """

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.prefixes: dict[str, str] = {}
        self.readers_of_all: set[str] = set()
        self._replacements = Replacements()

    def __enter__(self) -> VariableReads:
        kind: Any = type(os.environ)
        read_one, read_all = kind.__getitem__, kind.__iter__

        def note_one(environ: Any, name: Any) -> Any:
            if (
                isinstance(name, (str, bytes))
                and (text := os.fsdecode(name)) not in self.names
                and _find_prefix() is None
            ):
                self.names[text] = find_caller()
            return read_one(environ, name)

        def note_all(environ: Any) -> Any:
            prefix = _find_prefix()
            if prefix is None:
                self.readers_of_all.add(find_caller())
            else:
                self.prefixes.setdefault(prefix, find_caller())
            return read_all(environ)

        self._replacements.replace(kind, "__getitem__", note_one)
        self._replacements.replace(kind, "__iter__", note_all)
        return self

    def __exit__(self, *error: object) -> None:
        self._replacements.restore()


def _find_prefix() -> str | None:
    """Return the prefix of the names that the reader of all variables keeps, if known."""
    found = find_known(FILTERED_READS)
    if found is None:
        return None
    known, frame = found
    if known.parameter and frame.f_locals.get(known.parameter) != known.prefix:
        return None
    return known.prefix
