"""What a worker's traceback says: the exception, and the user's line at which it was raised.

Works on text: the traceback in an error file, or the last lines of stderr. Loaded after a failure.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
_KNOWN = 16  # failures whose traceback is not read again
_MOST = 1 << 20  # characters at the end of a traceback that are read; it may have many more
_UNCAUGHT = 1  # what Python exits with after an exception that nobody caught
_HEADER = "Traceback (most recent call last):"
# A SyntaxError has no function; faulthandler writes no comma.
_FRAME = re.compile(r'  File "(.+)", line (\d+)(?:,? in .*)?')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:<locals>\.[\w.]+)*")
# torch.distributed puts it before each line of an exception that nobody caught.
_RANK = re.compile(r"\[rank\d+\]: ")
_LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_FAULT = "Fatal Python error: "  # faulthandler's
_CURRENT_THREAD = re.compile(r"(?:Current thread|Stack) .*\(most recent call first\):")
_CPP = ("  what():", "terminate called")
_NATIVE = ("frame #", "<omitting python frames>")

# Workers may run another interpreter than the launcher, so files are judged by their paths alone.
_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]"
    r"|[/\\]lib(?:64)?[/\\](?:python|pypy)\d(?:\.\d+)?t?[/\\]"
    r"|[/\\]python\d+\.zip[/\\]"
    r"|^<frozen "
)
# A torch that is used from its sources.
_TORCH = re.compile(
    r"[/\\]torch[/\\](?:_\w+|autograd|cuda|distributed|fx|jit|multiprocessing|nn|optim|utils"
    r"|functional\.py|serialization\.py)(?:[/\\]|$)|^<eval_with_key>"
)


class Raised(NamedTuple):
    """An exception: its type, what it says with its type, and the user's line (`train.py:12`)."""

    exception: str = ""
    text: str = ""
    place: str = ""


@lru_cache(_KNOWN)
def raised_in_reply(text: str, traceback: str) -> Raised:
    """The exception in an error file.

    Args:
        text: what the worker says, usually the exception.
        traceback: of that, where there is one.
    """
    raised = _end_of_traceback(_last_block(traceback[-_MOST:].splitlines()))
    if not (raised.exception or raised.place):
        name = text.partition(":")[0]
        is_one = _EXCEPTION.fullmatch(name) and name.rpartition(".")[2][:1].isupper()
        raised = Raised(name if is_one else "")
    return raised._replace(text=text)


def raised_in_output(last_lines: Sequence[str], exitcode: int) -> Raised:
    """The exception that ended a worker without an error file, in its last lines; empty if none.

    It is the last traceback, if the worker exited as Python does after one. Of a crash, the place
    is where `faulthandler` saw the thread that crashed.
    """
    lines = _unmarked(last_lines)
    if exitcode < 0:
        return Raised(place=_place_of_crash(lines))
    if exitcode != _UNCAUGHT:
        return Raised()  # whatever was caught and written before, it did not end the worker
    raised = _end_of_traceback(_from_last_frame(lines, _last_header(lines)))
    return raised if raised.exception else Raised()


@lru_cache(_KNOWN)
def chain_in_reply(text: str, traceback: str) -> str:
    """What the exception in an error file says, and those that led to it."""
    return "\n".join((text, *_said(traceback[-_MOST:].splitlines())))


def chain_in_output(last_lines: Sequence[str], exitcode: int) -> str:
    """The same of a worker without an error file; of one that a signal ended, its last lines."""
    lines = _unmarked(last_lines)
    if exitcode < 0:
        return "\n".join(lines)
    begin = _last_header(lines)
    first = begin
    while first is not None and any(link in lines[max(first - 2, 0) : first] for link in _LINKS):
        first = _last_header(lines[:first])
    return "\n".join(_said(_from_last_frame(lines, begin if first is None else first)))


def is_own(path: str) -> bool:
    """Whether a file is the user's: neither Python's, nor of an installed package, nor torch's."""
    return not (_LIBRARY.search(path) or _TORCH.search(path))


def shorten(lines: Sequence[str], most: int, most_chars: int | None = None) -> list[str]:
    """The last lines that fit, and of a traceback that does not, what matters.

    That is its header, the user's own frames, the last ones first, and the exception. Where lines
    between others are left out, one line says how many.

    Args:
        lines: the output of a worker, or a traceback.
        most: how many lines the result has at most.
        most_chars: how many characters it has at most, with one for the end of each line.
    """
    budget = _Budget(lines, most, most_chars)
    if budget.fits(set(range(len(lines)))):
        return list(lines)
    kept: set[int] = set()
    for group in _groups_that_matter(_unmarked(lines), most):
        # The half of the room is for what was written last.
        if len(kept | group) <= max(most // 2, 1) and budget.fits(kept | group):
            kept |= group
    for number in reversed(range(len(lines))):
        if not budget.fits(kept | {number}):
            break
        kept.add(number)
    return budget.text(kept) or [line[-(most_chars or len(line)) :] for line in lines[-1:]]


class _Budget:
    """What a choice of lines takes."""

    def __init__(self, lines: Sequence[str], most: int, most_chars: int | None) -> None:
        self._lines, self._most, self._most_chars = lines, most, most_chars

    def fits(self, kept: set[int]) -> bool:
        if len(kept) > self._most:
            return False
        text = self.text(kept)
        chars = sum(len(line) + 1 for line in text)
        return len(text) <= self._most and (self._most_chars is None or chars <= self._most_chars)

    def text(self, kept: set[int]) -> list[str]:
        found: list[str] = []
        before = -1
        for number in sorted(kept):
            if found and (left_out := number - before - 1):
                is_one = left_out == 1
                found.append(f"    ... {left_out} line{'' if is_one else 's'} left out ...")
            found.append(self._lines[number])
            before = number
        return found


def _groups_that_matter(lines: Sequence[str], most: int) -> Iterable[set[int]]:
    """The lines of the last traceback that say most, those first that say most.

    What ended before the last `most` lines was caught, or only shown. Native frames do not count.
    """
    told = [n for n, line in enumerate(lines) if line and not line.startswith(_NATIVE)]
    recent = told[-most] if len(told) > most else 0
    yield from ({n} for n in range(recent, len(lines)) if lines[n].startswith((*_CPP, _FAULT)))
    header = _last_header(lines)
    begin = 0 if header is None else header + 1
    frames = [n for n in range(begin, len(lines)) if _FRAME.fullmatch(lines[n])]
    end = next(
        (n for n in range(frames[-1] + 1 if frames else begin, len(lines)) if _is_end(lines[n])),
        None,
    )
    if not frames or (end is not None and end < recent):
        return
    if end is not None:
        yield {end}
    own = [n for n in frames if (found := _FRAME.fullmatch(lines[n])) and is_own(found[1])]
    if own:
        yield _frame_at(lines, own[-1])
    if header is not None:
        yield {header}
    for number in reversed(own[:-1]):
        yield _frame_at(lines, number)


def _frame_at(lines: Sequence[str], number: int) -> set[int]:
    """The line of a frame, and its source."""
    has_source = number + 1 < len(lines) and lines[number + 1].startswith("    ")
    return {number, number + 1} if has_source else {number}


def _is_end(line: str) -> bool:
    return bool(line) and not line.startswith(" ")


def _unmarked(lines: Iterable[str]) -> list[str]:
    return [_RANK.sub("", line, count=1) for line in lines]


def _last_header(lines: Sequence[str]) -> int | None:
    return next((n for n in reversed(range(len(lines))) if lines[n] == _HEADER), None)


def _last_block(lines: Sequence[str]) -> Sequence[str]:
    """What stands behind the last header: before it are causes, in it other workers' exceptions."""
    begin = _last_header(lines)
    # Of a long one, nodes tell each other the end.
    return _from_last_frame(lines, None) if begin is None else lines[begin + 1 :]


def _from_last_frame(lines: Sequence[str], header: int | None) -> Sequence[str]:
    """What follows the header; without one, whatever is left of a traceback."""
    if header is not None:
        return lines[header + 1 :]
    frames = [number for number, line in enumerate(lines) if _FRAME.fullmatch(line)]
    if not frames:
        return ()
    first = frames[-1]
    for number in reversed(frames):
        if any(_is_end(line) for line in lines[number:first]):
            break  # it belongs to an earlier traceback
        first = number
    return lines[first:]


def _said(lines: Iterable[str]) -> list[str]:
    """What exceptions say, of a text with tracebacks: all but frames and source."""
    return [line for line in lines if not line.startswith("  ")]


def _end_of_traceback(lines: Iterable[str]) -> Raised:
    frames: list[tuple[str, str]] = []
    for line in lines:
        if frame := _FRAME.fullmatch(line):
            frames.append((frame[1], frame[2]))
        elif line and not line.startswith(" "):
            name = line.partition(":")[0]
            if _EXCEPTION.fullmatch(name):
                return Raised(name, line, _place(frames))
            break  # what `plaunch.worker` writes, which is no exception
    return Raised(place=_place(frames))


def _place(frames: Sequence[tuple[str, str]]) -> str:
    """The last frame that is the user's own; without one, the last outside of torch, or at all."""
    for accepts in (is_own, lambda path: not _TORCH.search(path), bool):
        for path, line in reversed(frames):
            if accepts(path):
                return f"{os.path.basename(path)}:{line}"
    return ""


def _place_of_crash(lines: Sequence[str]) -> str:
    """The user's line in a dump of faulthandler, which has the last call first."""
    starts = [n for n, line in enumerate(lines) if _CURRENT_THREAD.match(line)]
    if not starts or not any(line.startswith(_FAULT) for line in lines):
        return ""
    frames = []
    for line in lines[starts[-1] + 1 :]:
        frame = _FRAME.fullmatch(line)
        if frame is None:
            break
        frames.append((frame[1], frame[2]))
    return _place(frames[::-1])
