"""Breaks the lines of messages at words, for a terminal."""

from __future__ import annotations

import re
import unicodedata

_COLOR = re.compile(r"\x1b\[[\d;]*m")
_WORD = re.compile(r"( *)([^ ]+)")
_HANGING = "  "  # further than the line that continues
_MOST_INDENT = 2  # of the width's parts: a deeper line would leave no room for words


def wrap(text: str, width: int) -> str:
    """Break lines of more than `width` columns at spaces.

    A continuation has the indentation of its line and two columns more. A word that is too long,
    such as a path, is left whole: the terminal breaks it, and it can be copied.

    Args:
        text: lines; they may have colours.
        width: the columns of the terminal.
    """
    return "\n".join(_wrap_line(line, width) for line in text.split("\n"))


def count_columns(text: str) -> int:
    """Return how many columns a terminal needs for a text, which may have colours."""
    text = _COLOR.sub("", text)
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def _wrap_line(line: str, width: int) -> str:
    if count_columns(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip(" "))]
    if len(indent) >= width // _MOST_INDENT:
        return line
    indent += _HANGING
    lines, column = [""], 0
    for spaces, word in _WORD.findall(line):
        columns = count_columns(word)
        if column + len(spaces) + columns > width and lines[-1].strip():
            lines.append(indent + word)
            column = len(indent) + columns
        else:
            lines[-1] += spaces + word
            column += len(spaces) + columns
    return "\n".join(lines)


def _columns_of(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
