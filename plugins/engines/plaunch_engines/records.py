"""Records: what an agent reports to the command that started it, between lines of its output.

A record is one line: a character that no text has (ASCII's record separator), a word, a nonce, and
a JSON object whose fields `FIELDS` lists. It may follow text that does not end with a newline.

Workers write to the same streams. The command sends each agent a nonce with its settings, which
workers do not get, so what a worker writes is text, whatever it looks like. The first record, the
hello, has no nonce: it precedes the settings, and so all workers.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from plaunch import __version__
from plaunch.numbers import MOST, quote
from plaunch.rendezvous import JobOutcome
from plaunch.texts import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 3  # of the records and of the lines in the other direction
MAX_LINE = 64 << 10  # bytes; a longer line of text is passed on in parts
# Bytes of a record while others write to the same stream: what one write puts into a pipe (PIPE_BUF
# of Linux), less room for a message that is written with it.
MAX_RECORD = 3800
_MAX_SHOWN = 500  # characters of a text of a record that stands in a message
_MOST_LAST, _MAX_LAST = 8, 1 << 14  # messages below the report, and characters of each
_MARK = b"\x1eplaunch "
MAX_PART = 300  # characters of a text, of which JSON needs up to twelve bytes each


@dataclass(frozen=True)
class Whole:
    """A whole number.

    Args:
        least: the smallest value.
        most: the largest value.
    """

    least: int = 0
    most: int = MOST

    def allows(self, value: object) -> bool:
        """Whether a field may have this value."""
        return type(value) is int and self.least <= value <= self.most

    def __str__(self) -> str:
        return f"a whole number from {self.least} to {self.most}"


@dataclass(frozen=True)
class Text:
    """A text of at most `most` characters."""

    most: int = 4096

    def allows(self, value: object) -> bool:
        """Whether a field may have this value."""
        return isinstance(value, str) and len(value) <= self.most

    def __str__(self) -> str:
        return f"a text of at most {self.most} characters"


@dataclass(frozen=True)
class Texts:
    """A list of at most `most` texts of at most `length` characters each."""

    most: int
    length: int

    def allows(self, value: object) -> bool:
        """Whether a field may have this value."""
        return (
            isinstance(value, list)
            and len(value) <= self.most
            and all(Text(self.length).allows(one) for one in value)
        )

    def __str__(self) -> str:
        return f"a list of at most {self.most} texts of at most {self.length} characters"


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def allows(self, value: object) -> bool:
        """Whether a field may have this value."""
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class OneOf:
    """One of some words."""

    words: tuple[str, ...]

    def allows(self, value: object) -> bool:
        """Whether a field may have this value."""
        return isinstance(value, str) and value in self.words

    def __str__(self) -> str:
        return f"one of {', '.join(map(repr, self.words))}"


_CODE = Whole(0, 255)
# The fields of each kind of record, besides `kind`; all of them are required.
FIELDS: Mapping[str, Mapping[str, Whole | Text | Texts | Flag | OneOf]] = MappingProxyType(
    {
        # What the command needs to know of a node, before it sends the settings.
        "hello": {
            "protocol": Whole(),
            "version": Text(),
            "python": Text(),
            "host": Text(),
            "pid": Whole(1),
            "has_folder": Flag(),
            "script": Text(),
            "port": Whole(0, 65535),
            "addresses": Texts(16, 64),
            "client": Text(64),
        },
        # Whether the node reaches a store that the command offers; why not, if there is an error.
        "probed": {"endpoint": Text(100), "microseconds": Whole(), "error": Text(MAX_PART)},
        # A round has begun: its workers have been started on this node.
        "running": {
            "round": Whole(), "attempt": Whole(), "nodes": Whole(1), "workers": Whole(1),
            "is_job_wide": Flag(),
        },
        # The message about the restart that has led to a round of the whole job.
        "restarted": {"round": Whole(), "text": Text(MAX_PART)},
        # The workers of this node have ended, and no round follows here.
        "workers_ended": {},
        # A part of the text of a failure, which follows.
        "failure_text": {"text": Text(MAX_PART)},
        "failure": {
            "text": Text(MAX_PART), "code": _CODE, "is_first": Flag(), "is_of_workers": Flag(),
            "is_consequence": Flag(),
        },
        # A message that is shown below the report, or more of the one before.
        "last_message": {"text": Text(MAX_PART), "is_more": Flag()},
        # The last record on standard error: the exit code of the agent, whether all of its workers
        # have succeeded, and how the job ended according to its own record.
        "end": {
            "code": _CODE, "has_succeeded": Flag(),
            "verdict": OneOf(("", *(outcome.value for outcome in JobOutcome))),
        },
        # The last record on standard output: all that workers have written there precedes it.
        "end_of_output": {},
    }
)  # fmt: skip


@dataclass(frozen=True)
class InvalidRecord:
    """A record with the agent's nonce that is not one; the text says why, in a few words."""

    problem: str


Piece = bytes | dict[str, Any] | InvalidRecord  # text, a record, or what is neither


def encode(nonce: str, **fields: object) -> bytes:
    """Return a record; `kind` is one of its fields.

    Args:
        nonce: that of the agent; empty for the hello.
        fields: as in `FIELDS`.
    """
    begin = _MARK + (f"{nonce} ".encode() if nonce else b"")
    return begin + json.dumps(fields).encode() + b"\n"


def encode_failure(nonce: str, text: str, **fields: object) -> bytes:
    """Return the records of a failure, whose text may be long: none exceeds `MAX_RECORD`."""
    *parts, last = [text[at : at + MAX_PART] for at in range(0, len(text), MAX_PART)] or [""]
    return b"".join(
        (
            *(encode(nonce, kind="failure_text", text=part) for part in parts),
            encode(nonce, kind="failure", text=last, **fields),
        )
    )


def encode_last_message(nonce: str, text: str) -> bytes:
    """Return the records of a message that is shown below the report."""
    starts = range(0, len(text), MAX_PART)
    fields = ({"text": text[at : at + MAX_PART], "is_more": at > 0} for at in starts)
    return b"".join(encode(nonce, kind="last_message", **one) for one in fields)


class LastMessages:
    """The messages of an agent that are shown below the report; the first ones, if there are many.

    Attributes:
        texts: the messages.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, text: str, *, is_more: bool) -> None:
        """Add the text of a record, which may continue that of the one before."""
        if is_more and self.texts:
            self.texts[-1] = (self.texts[-1] + text)[:_MAX_LAST]
        elif len(self.texts) < _MOST_LAST:
            self.texts.append(text)


def find_problem(record: Mapping[str, Any]) -> str:
    """Return what is wrong with a record, in a few words; empty if it is as `FIELDS` says.

    The hello of another version may have other fields, except for its versions.
    """
    kind = record.get("kind")
    fields = FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        return f"its kind is {_show(kind)}"
    if kind == "hello" and _is_of_another_version(record):
        return ""
    for name, type_ in fields.items():
        if name not in record:
            return f"{kind} has no {name}"
        if not type_.allows(record[name]):
            return f"{name} of {kind} is {_show(record[name])}, not {type_}"
    if len(record) > len(fields) + 1:
        [unknown, *_] = sorted(record.keys() - fields.keys() - {"kind"})
        return f"{kind} has an unknown field {quote(unknown)}"
    return ""


def _is_of_another_version(hello: Mapping[str, Any]) -> bool:
    protocol, version = hello.get("protocol"), hello.get("version")
    fields = FIELDS["hello"]
    return (
        fields["protocol"].allows(protocol)
        and fields["version"].allows(version)
        and (protocol, version) != (VERSION, __version__)
    )


def _show(value: object) -> str:
    """Return a value of JSON for a message."""
    return "not a single value" if isinstance(value, (dict, list)) else quote(value)


def printable_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record whose texts may stand in messages; those of lists, too."""
    found = dict(record)
    for name, value in record.items():
        if isinstance(value, str):
            found[name] = printable(value, _MAX_SHOWN)
        elif isinstance(value, list):
            found[name] = [printable(str(item), _MAX_SHOWN) for item in value]
    return found


def describe_script(folder: str, script: str) -> str:
    """Return text that is the same for equal files; empty if there is no file.

    Args:
        folder: the working folder.
        script: the file, which may be relative to it; empty if the program is not a file.
    """
    try:
        with open(os.path.join(folder, script), "rb") as file:
            content = file.read()
    except OSError:
        return ""
    return f"{len(content)} bytes, CRC {zlib.crc32(content):08x}"


class Records:
    """Splits a stream of an agent into text and records.

    Until `expect` is called, the only record is a hello.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._mark = _MARK
        self._has_nonce = False

    def expect(self, nonce: str) -> None:
        """Set the nonce of all further records."""
        self._mark = _MARK + nonce.encode() + b" "
        self._has_nonce = True

    def feed(self, data: bytes) -> list[Piece]:
        """Return text and records in their order; text as blocks of whole lines where possible.

        A block without a newline at its end is the beginning of a line, which the next block
        continues.

        Args:
            data: what was read; empty at the end of the stream, which completes the last line.
        """
        pieces: list[Piece] = []
        buffer = self._rest + data
        begin = 0
        while (mark := buffer.find(self._mark, begin)) >= 0:
            if mark > begin:
                pieces.append(buffer[begin:mark])
            begin = mark
            end = buffer.find(b"\n", mark)
            if end < 0:
                break
            pieces.append(self._decode(buffer[begin : end + 1]))
            begin = end + 1
        if mark >= 0:  # the last record is not complete
            self._rest = buffer[begin:]
            if not data or len(self._rest) > MAX_LINE:
                if not self._has_nonce:
                    pieces.append(self._rest)
                elif data:
                    pieces.append(InvalidRecord(f"it has more than {MAX_LINE} bytes"))
                self._rest = b""
            return pieces
        end = buffer.rfind(b"\n", begin) + 1 or begin
        if not data:
            end = len(buffer)
        elif len(buffer) - end > MAX_LINE:
            end = len(buffer) - self._length_of_begun_mark(buffer)
        self._rest = buffer[end:]
        if end > begin:
            pieces.append(buffer[begin:end])
        return pieces

    def has_begun_line(self) -> bool:
        """Whether there is text of a line without an end."""
        return len(self._rest) > self._length_of_begun_mark(self._rest) and not self._is_bar()

    def take_begun_line(self) -> bytes:
        """Remove and return the text of a line without an end; empty if there is none."""
        if not self.has_begun_line():
            return b""
        end = len(self._rest) - self._length_of_begun_mark(self._rest)
        text, self._rest = self._rest[:end], self._rest[end:]
        return text

    def _is_bar(self) -> bool:
        return b"\r" in self._rest

    def _length_of_begun_mark(self, buffer: bytes) -> int:
        """Return how many bytes at the end are a begun record, or may be one."""
        if buffer.startswith(self._mark):
            return len(buffer)
        at = buffer.rfind(self._mark[:1], max(len(buffer) - len(self._mark) + 1, 0))
        return len(buffer) - at if at >= 0 and self._mark.startswith(buffer[at:]) else 0

    def _decode(self, line: bytes) -> Piece:
        try:
            record = json.loads(line[len(self._mark) :])
        except (ValueError, RecursionError):  # also of a number with thousands of digits
            record = None
        if not isinstance(record, dict):
            return InvalidRecord("it is not a JSON object") if self._has_nonce else line
        if not self._has_nonce and record.get("kind") != "hello":
            return line
        problem = find_problem(record)
        return InvalidRecord(problem) if problem else record
