"""Shortens long texts to their last lines, and the important lines of a traceback."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from plaunch.process.frames import find_dump
from plaunch.process.tracebacks import (
    LINKS,
    SourceFiles,
    find_ending,
    find_tracebacks,
    frames_of,
    unmarked,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from plaunch.process.frames import FaultDump, Frame
    from plaunch.process.tracebacks import Traceback

_CPP = ("  what():", "terminate called")
_NATIVE = ("frame #", "<omitting python frames>")


def shorten(lines: Sequence[str], most: int, most_chars: int | None = None) -> list[str]:
    """Return the last lines that fit, and the important ones of a traceback that does not fit.

    These are its header, the user's own frames, the last ones first, and the exception; of the
    tracebacks that led to it, header and exception; of a dump of `faulthandler`, the fault and the
    frames. Each gap is marked by a line with the number of lines left out. Takes time in proportion
    to the lines, because the agent's loop waits for it.

    Args:
        lines: the output of a worker, or a traceback.
        most: how many lines the result has at most.
        most_chars: how many characters it has at most, with one for the end of each line.
    """
    chars = sum(len(line) + 1 for line in lines)
    if len(lines) <= most and (most_chars is None or chars <= most_chars):
        return list(lines)
    excerpt = _Excerpt(lines, most, sys.maxsize if most_chars is None else most_chars)
    groups, others = _by_weight(unmarked(lines), most)
    for group in groups:
        # Half of the lines are for the end of the text.
        excerpt.add(group, max(most // 2, 1))
    for number in others:
        if not excerpt.add((number,), most):
            break
    return excerpt.text() or [line[-(most_chars or len(line)) :] for line in lines[-1:]]


class _Excerpt:
    """The lines of a text that are kept, within bounds."""

    def __init__(self, lines: Sequence[str], most: int, most_chars: int) -> None:
        self._lines, self._most, self._most_chars = lines, most, most_chars
        self._is_kept = bytearray(len(lines) + 2)  # of line n at n + 1, so that all have neighbours
        self._count = self._chars = self._runs = 0
        self._gap_chars = len(_gap(len(lines))) + 1

    def add(self, group: Sequence[int], most_kept: int) -> bool:
        """Keep all lines of a group if there is room, otherwise none; return whether they are kept.

        Args:
            group: the numbers of the lines.
            most_kept: how many lines may be kept, with those before.
        """
        before = self._count, self._chars, self._runs
        new = [number for number in group if not self._is_kept[number + 1]]
        for number in new:
            self._count += 1
            self._chars += len(self._lines[number]) + 1
            self._runs += 1 - self._is_kept[number] - self._is_kept[number + 2]
            self._is_kept[number + 1] = True
        gaps = max(self._runs - 1, 0)
        has_room = (
            self._count <= most_kept
            and self._count + gaps <= self._most
            and self._chars + gaps * self._gap_chars <= self._most_chars
        )
        if new and not has_room:
            self._count, self._chars, self._runs = before
            for number in new:
                self._is_kept[number + 1] = False
            return False
        return True

    def text(self) -> list[str]:
        """Return the kept lines, with one for each gap between them."""
        found: list[str] = []
        before = -1
        for number, line in enumerate(self._lines):
            if not self._is_kept[number + 1]:
                continue
            if found and number - before > 1:
                found.append(_gap(number - before - 1))
            found.append(line)
            before = number
        return found


def _gap(count: int) -> str:
    return f"    ... {count} line{'' if count == 1 else 's'} left out ..."


def _by_weight(lines: Sequence[str], most: int) -> tuple[Sequence[Sequence[int]], Iterable[int]]:
    """Return the groups of lines, the most important first, and the order of all lines.

    A traceback before the last `most` lines was caught, or only printed. A message lasts until
    other output begins; native frames, the tracebacks of threads and a dump do not count.
    """
    found, dump = find_tracebacks(lines), find_dump(lines)
    dumped = range(dump.start + 1, dump.stop) if dump else range(0)
    asides = [one for one in found if one.is_aside]
    aside = dict.fromkeys(n for one in asides for n in range(_head(one)[0], one.stop))
    counted = [
        number
        for number, line in enumerate(lines)
        if line and not line.startswith(_NATIVE) and number not in aside and number not in dumped
    ]
    recent = counted[-most] if len(counted) > most else 0
    groups: list[Sequence[int]] = [
        (n,) for n in range(recent, len(lines)) if lines[n].startswith(_CPP)
    ]
    if dump and dump.start >= recent:
        groups = [*_lines_of_dump(lines, dump), *groups]
    numbers = range(len(lines) - 1, -1, -1)
    # Other threads and frames in C say less than what the process had written before.
    order = (*(n for n in numbers if n not in dumped), *reversed(dumped))
    ending = find_ending(found)
    if ending and ending[0].stop > recent:
        groups += _lines_of_ending(lines, ending)
        # Of the other tracebacks, the first lines are the most important.
        return groups, (*(n for n in order if n not in aside), *aside)
    return [*groups, *(_head(one) for one in asides if one.stop > len(lines) - most)], order


def _lines_of_dump(lines: Sequence[str], dump: FaultDump) -> list[Sequence[int]]:
    """Return the lines that show where a process crashed, the most important first."""
    head = () if dump.head is None else (dump.head,)
    frames = ((frame.number,) for frame in reversed(dump.frames))
    return [(dump.start,), head, *_own_frames(lines, dump.frames), *frames]


def _lines_of_ending(lines: Sequence[str], ending: Sequence[Traceback]) -> list[Sequence[int]]:
    """Return the lines that show why a process ended, the most important first."""
    frames = _own_frames(lines, frames_of(ending))
    ends = [(one.end,) for one in ending if one.end < one.stop]
    head, *heads = map(_head, ending)
    return [*ends[:1], *frames[:1], head, *ends[1:], *heads, *frames[1:]]


def _head(one: Traceback) -> Sequence[int]:
    """Return the header of a traceback, and the line before it that links it to another one."""
    if one.header is None:
        return ()
    if one.link in LINKS:
        return (one.header - 2, one.header)
    return (one.header - 1, one.header) if one.is_aside else (one.header,)


def _own_frames(lines: Sequence[str], frames: Sequence[Frame]) -> list[Sequence[int]]:
    """Return the lines of the user's own frames, each with its source; the last one first."""
    paths = {frame.path for frame in frames}
    files = SourceFiles(paths)
    own = set(filter(files.is_own, paths))
    found: list[Sequence[int]] = []
    for frame in reversed(frames):
        if frame.path in own:
            source = frame.number + 1
            has_source = source < len(lines) and lines[source].startswith("    ")
            found.append(range(frame.number, source + has_source))
    return found
