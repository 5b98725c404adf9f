"""One line at the bottom of a terminal that says what the launcher waits for."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.cli.stderr import Stderr

_ERASE = "\r\x1b[K"


def live_line(stderr: Stderr) -> Callable[[str], None] | None:
    """What shows such a line on `stderr`; None if that is no terminal which could replace it."""
    stream = sys.stderr
    if stream is None or not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return None

    def show(text: str) -> None:
        if not text:
            stderr.erase()
            return
        try:
            width = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):
            width = 80
        line = f"plaunch: {text}"
        if len(line) >= width > 1:
            line = line[: width - 2] + "…"
        stderr.write(_ERASE + line)
        stderr.erasure = _ERASE

    return show
