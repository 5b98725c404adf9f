"""Parses the tracebacks of workers: the exception, its causes, and the user's line that raised it.

The text is the traceback in an error file, or the last lines of stderr. Loaded after a failure.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from plaunch.process.frames import ASIDE, FRAME, HEADER, Frame, find_dump
from plaunch.process.interleaved import find_interleaved, is_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\](torch[/\\])?")
_STANDARD_LIBRARY = re.compile(r"[/\\]lib(?:64)?[/\\](?:python|pypy)\d(?:\.\d+)?t?[/\\](\w+)[/\\.]")
_NO_FILE = re.compile(r"<frozen |.*[/\\]python\d+\.zip[/\\]")
_GRAPH = "<eval_with_key>"  # code that torch.fx has made
# Files that show that a folder `torch` has torch's sources, where torch is not installed.
_ONLY_TORCH = re.compile(
    r"(.*[/\\]torch[/\\])(?:_ops|_tensor|_jit_internal|_dynamo[/\\]\w+|_inductor[/\\]\w+"
    r"|autograd[/\\](?:function|graph)|distributed[/\\](?:distributed_c10d|c10d_logger|rendezvous)"
    r"|nn[/\\]modules[/\\]module|nn[/\\]parallel[/\\]distributed|utils[/\\]_contextlib"
    r"|utils[/\\]data[/\\](?:dataloader|_utils[/\\]\w+))\.py"
)


class SourceFiles:
    """The files of one traceback.

    Args:
        paths: the paths of the files. torch's sources are recognized by some of them.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        found = map(_ONLY_TORCH.fullmatch, set(paths))
        self._torch = tuple({match[1] for match in found if match})

    def is_torch(self, path: str) -> bool:
        """Whether a file belongs to torch."""
        package = _PACKAGES.search(path)
        is_installed = package is not None and package[1] is not None
        return is_installed or path.startswith((_GRAPH, *self._torch))

    def is_own(self, path: str) -> bool:
        """Whether a file belongs to the user, and not to Python, a package or torch."""
        standard = _STANDARD_LIBRARY.search(path)
        return not (
            (standard and standard[1] in sys.stdlib_module_names)
            or _PACKAGES.search(path)
            or _NO_FILE.match(path)
            or self.is_torch(path)
        )


_KNOWN = 16  # failures whose parsed traceback is cached
_MOST = 1 << 20  # characters at the end of a traceback that are parsed
_UNCAUGHT = 1  # Python's exit code after an uncaught exception
# torch puts the traceback of another process, such as a data loader's, into an exception's message.
_ORIGINAL = f"Original {HEADER}"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:<locals>\.[\w.]+)*")
# torch.distributed puts it before each line of an uncaught exception.
_RANK = re.compile(r"\[rank\d+\]: ")
_DIRECT = "The above exception was the direct cause of the following exception:"
LINKS = (_DIRECT, "During handling of the above exception, another exception occurred:")
_COLOR = re.compile(r"\x1b\[[\d;]*m")  # Python 3.13 and newer, on a terminal
# An exception group indents its traceback, and those of its exceptions even more.
_GROUP = re.compile(r"  (?:\+ Exception Group (?=Traceback)|\| )")
# The beginnings of log lines of torch, NCCL and Python.
_LOG = re.compile(
    r"(?:\[rank\d+\]:)?\[[DIWEF](?:\d{4})? "
    r"|\S+:\d+:\d+ \[\d+\] "
    r"|\[?\d{4}-\d\d-\d\d[ T]"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b"
)
# Messages of aborts, and of faults in the process's own code, which also end in an abort.
_LATE_ABORT = "terminate called without an active exception"
_ABORTS = ("terminate called", "  what():", "Watchdog caught")
_THROWN = re.compile(r"terminate called after throwing an instance of '.+'")
_WHAT = "  what():"
_ENFORCED = re.compile(r"^\[enforce fail at [^\]]*\] ")  # gloo puts the place in its source first
_NATIVE_FRAME = "frame #"
_OWN_FAULT = re.compile(
    r"CUDA error|(?:malloc|free|realloc|\w+_chunk)\(\)|double free|corrupted (?:size|double-linked)"
    r"|stack smashing|(?i:\bassert)"
)


class Raised(NamedTuple):
    """An exception: its type, its text with the type, and the user's line (`train.py:12`)."""

    exception: str = ""
    text: str = ""
    place: str = ""


class Traceback(NamedTuple):
    """One traceback in a text; `header`, `end` and `stop` are numbers of lines.

    Args:
        header: its first line; None if that is missing.
        frames: its calls, the last one last.
        end: the line with the exception, or where it would be.
        stop: the line after the exception's message.
        link: the line that links it to the previous traceback; empty if there is none.
        is_aside: whether it did not end the process.
    """

    header: int | None
    frames: list[Frame]
    end: int
    stop: int
    link: str = ""
    is_aside: bool = False


@lru_cache(_KNOWN)
def raised_in_reply(text: str, traceback: str) -> Raised:
    """Return the exception in an error file.

    Args:
        text: the message of the worker, usually the exception.
        traceback: its traceback; may be empty.
    """
    raised = _last_raised(unmarked(traceback[-_MOST:].splitlines()))
    if raised.exception and raised.text.partition("\n")[0] in text.splitlines()[1:]:
        return raised  # the exception of another process, whose traceback is in the text
    if not (raised.exception or raised.place):
        name = text.partition(":")[0]
        is_one = _EXCEPTION.fullmatch(name) and name.rpartition(".")[2][:1].isupper()
        raised = Raised(name if is_one else "")
    return raised._replace(text=text)


def raised_in_output(last_lines: Sequence[str], exitcode: int) -> Raised:
    """Find the exception that ended a worker without an error file, in its last lines.

    It is the last traceback, if the exit code is Python's after an exception. For a crash, only the
    place is known: the user's line in the dump of `faulthandler`. Empty if there is none.
    """
    lines, exitcode = _without_late_abort(unmarked(last_lines), exitcode)
    if exitcode < 0:
        dump = find_dump(lines)
        return Raised(place=_place(dump.frames) if dump else "")
    if exitcode != _UNCAUGHT:
        return Raised()  # a traceback in the output was caught and printed
    raised = _last_raised(lines)
    if raised.exception and is_error(raised.exception):
        return raised
    if _LOG.match(raised.text):
        raised = Raised()
    # Lines of other threads may be between those of the traceback, and look like its end.
    is_one = "." in raised.exception or raised.exception[:1].isupper()
    found = find_interleaved(lines, raised.text.partition("\n")[0] if is_one else "")
    if found is not None:
        frames = [Frame(number, *call) for number, call in enumerate(found.calls)]
        return Raised(found.exception, found.text, _place(frames))
    return raised if raised.exception else Raised()


@lru_cache(_KNOWN)
def chain_in_reply(text: str, traceback: str) -> tuple[str, ...]:
    """Return the texts of the exception in an error file and its causes, the first cause last."""
    return (text, *_chain(unmarked(traceback[-_MOST:].splitlines())))


def chain_in_output(last_lines: Sequence[str], exitcode: int) -> tuple[str, ...]:
    """Return them for a worker without an error file; after a signal, the reason of the abort."""
    lines, exitcode = _without_late_abort(unmarked(last_lines), exitcode)
    return _reason_of_abort(lines) if exitcode < 0 else _chain(lines)


def abort_in_output(last_lines: Sequence[str]) -> str:
    """Return why C++ aborted: type and text of its exception, or the last line; or "".

    The message must be the end of the output, where native frames and a dump of faulthandler may
    follow it. Otherwise it belongs to another process, or the script has printed it.
    """
    lines = unmarked(last_lines)
    dump = find_dump(lines)
    said = "\n".join(lines[: dump.start if dump else None]).rstrip().split("\n")
    if said[-1] == _LATE_ABORT:
        return _LATE_ABORT
    begin = next((n for n in reversed(range(len(said))) if _THROWN.fullmatch(said[n])), None)
    if begin is None:
        return ""
    what, *rest = said[begin + 1 :] or [_WHAT]
    if not what.startswith(_WHAT) or (rest and not rest[-1].startswith(_NATIVE_FRAME)):
        return ""
    kind = said[begin].partition("'")[2].rstrip("'")
    text = _ENFORCED.sub("", what.removeprefix(_WHAT).strip())
    return f"{kind}: {text}" if text else kind


def _without_late_abort(lines: list[str], exitcode: int) -> tuple[list[str], int]:
    """Return output and exit code without an abort during the exit of the interpreter.

    After an uncaught exception, C++ aborts if a thread of torch still runs. The exception is the
    cause, as if Python had exited with 1.
    """
    is_late = exitcode == -signal.SIGABRT and lines[-1:] == [_LATE_ABORT]
    if is_late and find_ending(find_tracebacks(lines)):
        return lines[:-1], _UNCAUGHT
    return lines, exitcode


def unmarked(lines: Iterable[str]) -> list[str]:
    """Return lines without colors, and without prefixes of torch.distributed or of a group."""
    found = [_RANK.sub("", _COLOR.sub("", line), count=1) for line in lines]
    if not any(line.startswith("  + Exception Group ") for line in found):
        return found
    return [_GROUP.sub("", line, count=1) for line in found]


def are_asides(lines: Iterable[str]) -> bool:
    """Whether there are tracebacks in the last lines of a process, and none has ended it."""
    found = find_tracebacks(unmarked(lines))
    return bool(found) and not find_ending(found)


def find_tracebacks(lines: Sequence[str]) -> list[Traceback]:
    """Find all tracebacks of a text in order; the first one may lack its header."""
    headers = [n for n, line in enumerate(lines) if line in (HEADER, _ORIGINAL)]
    first, *others = *headers, len(lines)
    found = _rest_of_traceback(lines, first)
    for header, stop in zip(headers, others, strict=True):
        link = lines[header - 2] if header > 1 else ""
        if lines[header] == _ORIGINAL:
            link = _ORIGINAL
        elif link not in LINKS:
            link = ""
        is_aside = header > 0 and ASIDE.match(lines[header - 1]) is not None
        is_aside = is_aside or bool(link and found and found[-1].is_aside)
        read = _read(lines, header + 1, stop)
        found.append(read._replace(header=header, link=link, is_aside=is_aside))
    return found


def find_ending(found: Sequence[Traceback]) -> list[Traceback]:
    """Find the traceback that ended a process, and those that led to it, the last one first."""
    ending: list[Traceback] = []
    for one in reversed([one for one in found if not one.is_aside]):
        ending.append(one)
        if not one.link:
            break
    return ending


def frames_of(ending: Sequence[Traceback]) -> list[Frame]:
    """Return the calls that led to the exception, across processes."""
    last, *others = ending
    return [*others[0].frames, *last.frames] if last.link == _ORIGINAL and others else last.frames


def _rest_of_traceback(lines: Sequence[str], stop: int) -> list[Traceback]:
    """Return the traceback before the first header, if there are frames or a link."""
    begin = next((n for n in reversed(range(stop)) if FRAME.fullmatch(lines[n])), None)
    if begin is None:
        return [_read(lines, 0, stop)] if any(link in lines[:stop] for link in LINKS) else []
    while begin and not _is_end(lines[begin - 1]):
        begin -= 1
    return [_read(lines, begin, stop)]


def _read(lines: Sequence[str], begin: int, stop: int) -> Traceback:
    """Read the traceback with frames from line `begin` on, at most up to line `stop`."""
    frames = []
    end = begin
    while end < stop and not _is_end(lines[end]):
        if frame := FRAME.fullmatch(lines[end]):
            frames.append(Frame(end, frame[1], frame[2]))
        end += 1
    return Traceback(None, frames, end, _end_of_message(lines, end + 1, stop))


def _is_end(line: str) -> bool:
    return bool(line) and not line[0].isspace()


def _end_of_message(lines: Sequence[str], begin: int, stop: int) -> int:
    """Return the line after a message whose second line would be `begin`."""
    for number in range(begin, stop):
        line = lines[number]
        if line in LINKS or _LOG.match(line) or ASIDE.match(line):
            return number
    return stop


def _text(lines: Sequence[str], begin: int, stop: int) -> str:
    return "\n".join(lines[begin:stop]).rstrip()


def _last_raised(lines: Sequence[str]) -> Raised:
    """Return the exception that ended a process; without a type if only the place is known."""
    ending = find_ending(find_tracebacks(lines))
    if not ending:
        return Raised()
    last = ending[0]
    place = _place(frames_of(ending))
    text = _text(lines, last.end, last.stop)
    name = text.partition("\n")[0].partition(":")[0]
    # `plaunch.worker` writes texts that are not exceptions.
    return Raised(name, text, place) if _EXCEPTION.fullmatch(name) else Raised(place=place)


def _chain(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of the last exception and of its direct causes."""
    said = []
    for one in find_ending(find_tracebacks(lines)):
        said.append(_text(lines, one.end, one.stop))
        if one.link != _DIRECT:
            break
    return tuple(said)


def _reason_of_abort(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the message of C++ for an abort, unless the fault is in the worker itself."""
    if any(_OWN_FAULT.search(line) for line in lines):
        return ()
    for words in _ABORTS:
        begin = next((n for n in reversed(range(len(lines))) if words in lines[n]), None)
        if begin is not None:
            return (_text(lines, begin, _end_of_message(lines, begin + 1, len(lines))),)
    return ()


def _place(frames: Sequence[Frame]) -> str:
    """Return the user's last frame; if there is none, the last one outside of torch, or of all."""
    files = SourceFiles(frame.path for frame in frames)
    for accepts in (files.is_own, lambda path: not files.is_torch(path), bool):
        for frame in reversed(frames):
            if accepts(frame.path):
                return f"{os.path.basename(frame.path)}:{frame.line}"
    return ""
