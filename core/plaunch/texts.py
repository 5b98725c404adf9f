"""Text from outside, for messages: what peers, programs, files and packages have written."""

from __future__ import annotations

__all__ = ["join_facts", "printable", "printable_message", "printable_output"]

MOST_CHARS = 4096  # of a text, and of a line of a message
MOST_LINES = 1000  # of a message
_CUT = "... ({} characters)"
_NAME = "plaunch:"  # begins every message
_SPACES = "\t\u00a0\u3000"  # a terminal shows them as spaces, though Python calls them unprintable
# Colours, titles, movements of the cursor.
_TERMINAL_SEQUENCE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"


def join_facts(*facts: str) -> str:
    """Join facts to a sentence for people; those that are empty are left out.

    For messages only: the facts may contain anything, so the sentence cannot be split again.
    """
    return "; ".join(filter(None, facts))


def printable(text: str, most: int = MOST_CHARS) -> str:
    r"""Return `text` on one line, safe for a terminal, and not longer than `most` characters.

    Line breaks, control characters, bidirectional marks and bytes that are not UTF-8 become escapes
    such as `\n` and `\x1b`, whose length counts. Of a longer text, the beginning remains, and a
    mark with its length. A result is returned unchanged if it is cleaned again.
    """
    if len(text) <= most and text.isprintable():
        return text
    shown = "".join(map(_escape, text[:most]))
    if len(text) <= most and len(shown) <= most:
        return shown
    mark = _CUT.format(len(text))
    return (shown[: max(most - len(mark), 0)] + mark)[:most]


def printable_output(line: str, most: int = MOST_CHARS) -> str:
    """Return a line of a worker's output as a terminal shows it, and then as `printable` does.

    Colours and similar sequences are removed: a pseudo-terminal makes Python 3.13 colour its
    tracebacks. Of a progress bar, the last state remains.
    """
    line = line.rstrip("\r\n")
    if "\x1b" in line:
        import re  # launches without failures do not need it

        line = re.sub(_TERMINAL_SEQUENCE, "", line)
    return printable(line.rpartition("\r")[2], most)


def printable_message(text: str) -> str:
    """Return a message of several lines, safe for a terminal.

    Each line is `printable`, and their number is limited. A line that looks like the beginning of
    another message of plaunch is indented.
    """
    if text.isprintable() and len(text) <= MOST_CHARS:
        return text
    first, *lines = text.split("\n", MOST_LINES)
    if len(lines) == MOST_LINES:
        lines[-1] = f"... and {lines[-1].count(chr(10)) + 1} more lines"
    shown = map(printable, lines)
    return "\n".join(
        [printable(first), *(f"  {line}" if line.startswith(_NAME) else line for line in shown)]
    )


def _escape(char: str) -> str:
    if char.isprintable() or char in _SPACES:
        return char
    return char.encode("unicode_escape").decode("ascii")
