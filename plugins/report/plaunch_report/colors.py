"""Colours for a terminal: only what is to be found at a glance has one."""

from __future__ import annotations

import re

_RESET = "\x1b[0m"
_BOLD, _DIM = "\x1b[1m", "\x1b[2m"
_YELLOW, _CYAN = "\x1b[33m", "\x1b[36m"
_HEADLINE = "\x1b[1;31m"  # bold and red

_PREFIX = "plaunch:"
_PREFIX_COLORS = {"WARNING": _YELLOW}  # by level; for others it is dim
# A path begins with a slash, which stands neither in a word nor in a fraction; that of another node
# has the name of the node in front of it.
_STANDS_OUT = re.compile(
    r"(?P<ranks>\b(?:local )?ranks? \d+(?:[-,]\d+)*)"
    r"|(?P<path>(?:(?<![\w./:-])[\w.-]+:)?(?<![\w./])/[\w.@%+=~-][^\s:;,()'\"]*)"
)


def paint(text: str, level: str) -> str:
    """`text` in colours; without them it is the same text.

    The first line of an error is a headline.

    Args:
        text: any text.
        level: how serious it is, as `logging` names it; empty if it is no message.
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
    return _STANDS_OUT.sub(_stand_out, text)


def _stand_out(match: re.Match[str]) -> str:
    return (_BOLD if match["ranks"] else _CYAN) + match.group() + _RESET
