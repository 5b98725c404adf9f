"""The exception of a traceback into which other threads of the process have written.

Threads write their lines between those of the traceback, or within one of them. The exception is
found only if it is certain: by a name that the last line of source raises, or by the form of its
line soon after the last call. Loaded after a failure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from plaunch.process.frames import ASIDE, HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence

_CALL = re.compile(r'  File "([^"]+)", line (\d+)(?:,? in .*)?$')  # perhaps behind other text
_RAISE = re.compile(r"\braise (?:\w+\.)*([A-Z]\w*)")
_ERROR = re.compile(
    r"(?:[A-Za-z_]\w*\.)*\w*(?:[Ee]rror|Exception|Interrupt|Exit|StopIteration)(?=: |$)"
)
_MOST_BETWEEN = 3  # lines of others between the last call and the exception


class InterleavedTraceback(NamedTuple):
    """What is certain about a traceback.

    Args:
        exception: the name of its exception.
        text: the name and the message, or only the name if others have written into the message.
        calls: the files and lines of its calls, the last one last.
    """

    exception: str
    text: str
    calls: Sequence[tuple[str, str]]


def is_error(name: str) -> bool:
    """Whether a name is one that exceptions usually have."""
    return _ERROR.fullmatch(name) is not None


def find_interleaved(lines: Sequence[str], known: str) -> InterleavedTraceback | None:
    """Find the last traceback of a process, whose exception has ended it; None if uncertain.

    Args:
        lines: the last lines of the process, without colors and prefixes.
        known: what would be the exception if nothing else had written; empty if nothing could be.
    """
    if any(map(ASIDE.search, lines)):
        return None
    header = next((n for n in reversed(range(len(lines))) if lines[n].endswith(HEADER)), -1)
    calls, last = [], header
    for number in range(header + 1, len(lines)):
        if call := _CALL.search(lines[number]):
            calls.append((call[1], call[2]))
            last = number
    if not calls:
        return None
    after = lines[last + 1 :]
    found = _find_raised(after)
    if found is None and not (known and known in after):
        found = _find_error(after)
    return None if found is None else InterleavedTraceback(*found, calls)


def _find_raised(after: Sequence[str]) -> tuple[str, str] | None:
    """Find the exception that the last line of source raises; its name, and its text."""
    source = next((n for n, line in enumerate(after) if _RAISE.search(line)), None)
    if source is None:
        return None
    name = _RAISE.findall(after[source])[0]
    begin = rf"^(?:\w+\.)*{name}"
    # Others may have written in front of it, without a space, and into it.
    for form in (rf"{begin}(?=: |$)", rf"(?<=\w){name}(?=: |$)"):
        for line in after[source + 1 :]:
            if found := re.search(form, line):
                return found[0], line[found.start() :]
    for line in after[source + 1 :]:
        if found := re.match(begin, line):
            return found[0], found[0]
    return None


def _find_error(after: Sequence[str]) -> tuple[str, str] | None:
    """Find the line of an exception by its form, if few lines of others are in front of it."""
    between = 0
    for line in after:
        if found := _ERROR.match(line):
            return found[0], line
        between += bool(line) and not line[0].isspace()
        if between > _MOST_BETWEEN:
            break
    return None
