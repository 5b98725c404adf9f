"""Text from outside, for messages: what peers, programs, files and packages have written."""

from __future__ import annotations

__all__ = ["printable", "printable_message"]

MOST_CHARS = 4096  # of a text, and of a line of a message
_MARK = "... ({} characters)"
_NAME = "plaunch:"  # begins every message
_CSI = "\x1b["
_COLOR = r"\x1b\[[0-9;:]*m"
_SPACES = "\t\u00a0\u3000"  # a terminal shows them as spaces, though Python calls them unprintable


def printable(text: str, most: int = MOST_CHARS) -> str:
    r"""Return `text` on one line, safe for a terminal, and not longer than `most` characters.

    Colours are removed. Line breaks, other control characters, bidirectional marks and bytes that
    are not UTF-8 become escapes such as `\n` and `\x1b`, whose length counts. Of a longer text, the
    beginning remains, and a mark with its length. Cleaning a result again does not change it.
    """
    if len(text) <= most and text.isprintable():
        return text
    if _CSI in text:
        import re  # launches without failures do not need it

        text = re.sub(_COLOR, "", text)
    shown = "".join(map(_escape, text[:most]))
    if len(text) <= most and len(shown) <= most:
        return shown
    mark = _MARK.format(len(text))
    return (shown[: max(most - len(mark), 0)] + mark)[:most]


def printable_message(text: str) -> str:
    """Return a message of several lines, safe for a terminal.

    Each line is `printable`. A line that looks like the beginning of another message of plaunch is
    indented.
    """
    if text.isprintable() and len(text) <= MOST_CHARS:
        return text
    first, *lines = map(printable, text.split("\n"))
    return "\n".join([first, *(f"  {line}" if line.startswith(_NAME) else line for line in lines)])


def _escape(char: str) -> str:
    if char.isprintable() or char in _SPACES:
        return char
    return char.encode("unicode_escape").decode("ascii")
