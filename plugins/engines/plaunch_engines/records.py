"""Records: what an agent reports to the command that started it, between lines of its stderr.

A record is one line: a character that no text has (ASCII's record separator), a word, a JSON
object. It may follow text that does not end with a newline.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

VERSION = 1  # of the records and of the lines in the other direction
_MARK = b"\x1eplaunch "
_MAX_RECORD = 1 << 20  # bytes; a longer one is taken for text
MAX_LINE = 64 << 10  # bytes; a longer line of text is passed on in parts


def encode(**fields: object) -> bytes:
    """Return a record; `kind` is one of its fields."""
    return _MARK + json.dumps(fields).encode() + b"\n"


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
    """Splits the standard error of an agent into lines of text and records."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[list[bytes], list[dict[str, Any]]]:
        """Return the complete lines, each with its newline, and the records, each in order.

        Args:
            data: what was read; empty at the end, which also completes the last line.
        """
        texts: list[bytes] = []
        records: list[dict[str, Any]] = []
        buffer = self._rest + data
        while True:
            mark, newline = buffer.find(_MARK), buffer.find(b"\n")
            if newline >= 0 and (mark < 0 or newline < mark):
                texts.append(buffer[: newline + 1])
                buffer = buffer[newline + 1 :]
            elif mark > 0:  # text without a newline
                texts.append(buffer[:mark])
                buffer = buffer[mark:]
            elif mark == 0 and newline > 0:
                record = _decode(buffer[len(_MARK) : newline])
                if record is None:
                    texts.append(buffer[: newline + 1])
                else:
                    records.append(record)
                buffer = buffer[newline + 1 :]
            else:
                break
        limit = _MAX_RECORD if buffer.startswith(_MARK) else MAX_LINE
        if buffer and (not data or len(buffer) > limit):
            texts.append(buffer)
            buffer = b""
        self._rest = buffer
        return texts, records


def _decode(text: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
