"""Colours of messages on a terminal."""

from __future__ import annotations

import re

_RESET = "\x1b[0m"
_BOLD, _DIM = "\x1b[1m", "\x1b[2m"
_YELLOW, _CYAN = "\x1b[33m", "\x1b[36m"
_HEADLINE = "\x1b[1;31m"  # bold and red

_PREFIX = "plaunch:"
_PREFIX_COLORS = {"WARNING": _YELLOW}  # by level; for others it is dim
# A path begins with a slash that is not part of a word or a fraction; a path on another node begins
# with the node's name.
_EMPHASIZED = re.compile(
    r"(?P<ranks>\b(?:local )?ranks? \d+(?:[-,]\d+)*)"
    r"|(?P<path>(?:(?<![\w./:-])[\w.-]+:)?(?<![\w./])/[\w.@%+=~-][^\s:;,()'\"]*)"
)


def paint(text: str, level: str) -> str:
    """Add colours to a text; the first line of an error is a headline.

    Args:
        text: the text.
        level: its log level, as named by `logging`; empty for text that is not a log message.
    """
    head, newline, rest = text.partition("\n")
    if level in ("ERROR", "CRITICAL"):
        head = head and _HEADLINE + head + _RESET
    elif level and head.startswith(_PREFIX):
        prefix = _PREFIX_COLORS.get(level, _DIM) + _PREFIX + _RESET
        head = prefix + _emphasize(head[len(_PREFIX) :])
    else:
        head = _emphasize(head)
    return head + newline + _emphasize(rest)


def _emphasize(text: str) -> str:
    return _EMPHASIZED.sub(_color_of, text)


def _color_of(match: re.Match[str]) -> str:
    return (_BOLD if match["ranks"] else _CYAN) + match.group() + _RESET
