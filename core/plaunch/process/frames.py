"""The forms of what Python prints: tracebacks, and the dumps of `faulthandler`.

These dumps list the last call first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER = "Traceback (most recent call last):"
# A traceback below such a line did not end the process. Children made with `multiprocessing` print
# their own, below the name of the process.
ASIDE = re.compile(
    r"Exception in thread |Exception ignored |Error in atexit\.|Process (?:\w+-)\d[\d:]*:$"
)
FAULT = "Fatal Python error: "
FRAME = re.compile(r'  File "(.+)", line (\d+)(?:, in .*)?')  # a SyntaxError has no function
_DUMPED_FRAME = re.compile(r'  File "(.+)", line (\d+) in .*')
_CURRENT_THREAD = re.compile(r"(?:Current thread|Stack) .*\(most recent call first\):")
# From Python 3.14 on, the frames in C follow those in Python; shortened texts have gaps.
_DUMPED = re.compile(
    r"$|(?:Current thread|Thread|Stack)\b.*\(most recent call first\):$|Extension modules: "
    r'|  (?:File|Binary file) "|\s*(?:<|\.\.\.)'
)


class Frame(NamedTuple):
    """A call in a traceback.

    Args:
        number: the number of its line in the text.
        path: its file.
        line: the line in that file.
    """

    number: int
    path: str
    line: str


class FaultDump(NamedTuple):
    """The last dump in a text; the others are numbers of lines.

    Args:
        start: its first line, with the fault.
        head: the line above the frames of the thread that crashed; None if that is missing.
        frames: these frames, the last call last.
        stop: the line after it.
    """

    start: int
    head: int | None
    frames: Sequence[Frame]
    stop: int


def find_dump(lines: Sequence[str]) -> FaultDump | None:
    """Find the last dump of a text."""
    starts = (n for n in reversed(range(len(lines))) if lines[n].startswith(FAULT))
    start = next(starts, None)
    if start is None:
        return None
    after = range(start + 1, len(lines))
    stop = next((n for n in after if not _DUMPED.match(lines[n])), len(lines))
    head = next((n for n in range(start, stop) if _CURRENT_THREAD.match(lines[n])), None)
    frames: list[Frame] = []
    for number in range(stop if head is None else head + 1, stop):
        if not lines[number]:
            break
        if frame := _DUMPED_FRAME.fullmatch(lines[number]):
            frames.append(Frame(number, frame[1], frame[2]))
    return FaultDump(start, head, frames[::-1], stop)
