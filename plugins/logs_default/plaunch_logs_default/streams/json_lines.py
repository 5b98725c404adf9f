"""Teed lines in the form of JSON; imported if the text before them has a place for the line."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from plaunch_logs_default.streams.lines import LINE_MACRO, MAX_LINE, MatchesToFile, encode
from plaunch_logs_default.streams.sinks import ByteSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from plaunch_logs_default.streams.console import Console

UTC_MACRO = "${utc}"
_STREAM_MACRO = "${stream}"


class LineFormat:
    """Makes a line of JSON of each line that a worker writes.

    Args:
        template: JSON, in which `${line}` becomes the line, `${stream}` its stream, and `${utc}`
            the time when the launcher read it, or null; each as a value of JSON.
        stream: `stdout` or `stderr`.
        is_late: the lines are read long after they were written, so that their time is not known.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        template: str,
        stream: str,
        *,
        is_late: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        template = template.replace(_STREAM_MACRO, json.dumps(stream))
        self._head, _, self._tail = template.partition(LINE_MACRO)
        self._is_late = is_late
        self._clock = clock

    def __call__(self, lines: Iterable[bytes]) -> bytes:
        """These lines, in one piece; what is not UTF-8 in them has a backslash."""
        now = None if self._is_late else datetime.fromtimestamp(self._clock(), timezone.utc)
        utc = json.dumps(now and now.isoformat(timespec="microseconds"))
        head, tail = (encode(part.replace(UTC_MACRO, utc)) for part in (self._head, self._tail))
        texts = (json.dumps(line.decode("utf-8", "backslashreplace")).encode() for line in lines)
        return b"".join(b"%b%b%b\n" % (head, text, tail) for text in texts)


class JsonLinesToConsole(ByteSink):
    r"""Shows a stream line by line, each as JSON; only whole ones, until `close`.

    A line ends with `\n`, `\r\n` or a bare `\r`, so that each state of a progress bar is one.

    Args:
        line_format: makes JSON of lines.
        console: where they are shown.
        max_line: bytes of a line; a longer one is shown in pieces.
    """

    def __init__(self, line_format: LineFormat, console: Console, max_line: int = MAX_LINE) -> None:
        self._format = line_format
        self._console = console
        self._max_line = max_line
        self._rest = b""

    def write(self, data: bytes) -> None:
        """Show the lines that `data` completes."""
        text = self._rest + data
        end = len(text) - text.endswith(b"\r")  # a `\n` may follow
        cut = max(text.rfind(b"\n", 0, end), text.rfind(b"\r", 0, end)) + 1
        self._rest = text[cut:]
        if cut:
            self._console.put(self._format(text[:cut].splitlines()), self)
        if len(self._rest) > self._max_line:
            self.close()

    def close(self) -> None:
        """Show what is unfinished."""
        rest, self._rest = self._rest, b""
        if rest:
            self._console.put(self._format(rest.splitlines()), self)


class JsonMatchesToFile(MatchesToFile):
    """Adds the matching lines of one stream to a file, each as JSON; see `MatchesToFile`."""

    def __init__(
        self, line_format: LineFormat, substrings: Sequence[bytes], file: ByteSink
    ) -> None:
        super().__init__(bytes, substrings, file)
        self._line_format = line_format

    def _format(self, lines: Iterable[bytes]) -> bytes:
        return self._line_format(lines)
