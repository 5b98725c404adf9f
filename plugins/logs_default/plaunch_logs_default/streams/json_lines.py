"""Teed lines as JSON; imported if the prefix is a template that contains `${line}`."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from plaunch_logs_default.streams.lines import LINE_MACRO, MAX_LINE, encode
from plaunch_logs_default.streams.sinks import ByteSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from plaunch_logs_default.streams.consoles import Console

UTC_MACRO = "${utc}"
_STREAM_MACRO = "${stream}"


class LineFormat:
    """Formats each line that a worker writes as a line of JSON.

    Args:
        template: JSON in which `${line}` becomes the line, `${stream}` its stream, and `${utc}`
            the time when the launcher read it, or null; each as a JSON value.
        stream: `stdout` or `stderr`.
        is_delayed: whether lines may be read long after they were written; `${utc}` is then null.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        template: str,
        stream: str,
        *,
        is_delayed: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        template = template.replace(_STREAM_MACRO, json.dumps(stream))
        self._head, _, self._tail = template.partition(LINE_MACRO)
        self._is_delayed = is_delayed
        self._clock = clock

    def __call__(self, lines: Iterable[bytes]) -> bytes:
        """Format the lines, in one piece; bytes that are not UTF-8 become backslash escapes."""
        now = None if self._is_delayed else datetime.fromtimestamp(self._clock(), timezone.utc)
        utc = json.dumps(now and now.isoformat(timespec="microseconds"))
        head, tail = (encode(part.replace(UTC_MACRO, utc)) for part in (self._head, self._tail))
        texts = (json.dumps(line.decode("utf-8", "backslashreplace")).encode() for line in lines)
        return b"".join(b"%b%b%b\n" % (head, text, tail) for text in texts)


class JsonLinesToConsole(ByteSink):
    r"""Shows a stream line by line, each as JSON; an incomplete line only at `close`.

    A line ends with `\n`, `\r\n` or a bare `\r`, so each state of a progress bar is a line.

    Args:
        line_format: formats lines as JSON.
        console: shows them.
        max_line: maximum bytes of a line; a longer one is shown in pieces.
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
        """Show the incomplete line."""
        rest, self._rest = self._rest, b""
        if rest:
            self._console.put(self._format(rest.splitlines()), self)
