"""Formats the launcher's messages: text, with colours on a terminal, or JSON lines."""

from __future__ import annotations

import contextlib
import os
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

from plaunch.errors import PluginLoadError
from plaunch.parts import JSON_LINE, PAINT, load_part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMATS = ("text", "json")
COLORS = ("auto", "always", "never")


class Form:
    """Formats each message of this process."""

    def __init__(self) -> None:
        self.run_id: str | None = None  # of the launch, once it has one
        self.is_json = False
        self._color = "auto"

    def choose(self, log_format: str, color: str) -> None:
        """Set the format from the options, and forget the last launch's run id.

        Args:
            log_format: one of `FORMATS`.
            color: one of `COLORS`.
        """
        self.is_json, self._color, self.run_id = log_format == "json", color, None

    def guess(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Do the same from a command line that cannot be parsed, for the message about it."""
        is_json = "--log-format=json" in argv or ("--log-format", "json") in pairwise(argv)
        self.choose("json" if is_json else environ.get("PET_LOG_FORMAT", "text"), "auto")

    def __call__(self, text: str, level: str, created: float | None = None) -> str:
        """Format a message, without a final newline.

        Args:
            text: the message.
            level: the name of its level in `logging`.
            created: its time in seconds since the epoch; None means now.
        """
        if self.is_json:
            line: str = load_part(JSON_LINE)(text, level, created, self.run_id)
            return line
        return self.color(f"plaunch: {text}", level)

    def color(self, text: str, level: str = "") -> str:
        """Colour a text, if stderr shall have colours; highlights ranks and paths.

        Args:
            text: any text; a message begins with `plaunch:`.
            level: the level of a message; empty for other texts.
        """
        if self._has_colors():
            with contextlib.suppress(PluginLoadError):
                text = load_part(PAINT)(text, level)
        return text

    def _has_colors(self) -> bool:
        """Whether `--color` asks for colours; `auto` follows CPython's rules for tracebacks."""
        if self._color != "auto":
            return self._color == "always"
        environ = os.environ
        if environ.get("NO_COLOR"):
            return False
        if environ.get("FORCE_COLOR"):
            return True
        stream = sys.stderr
        if environ.get("TERM") == "dumb" or stream is None:
            return False
        try:
            return stream.isatty()
        except ValueError:  # it is closed
            return False


FORM = Form()  # one per process, as there is one stderr
