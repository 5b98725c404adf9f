"""Teed lines: each goes to the console with a prefix, and matching ones to a file as well."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plaunch.process import PROMPT_HOLD, PROMPT_HOLD_IN_LOG

from plaunch_logs_default.streams.sinks import HOLD, ByteSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from plaunch_logs_default.streams.consoles import Console

MAX_LINE = 1 << 20  # bytes; a longer line is shown in pieces
TIME_MACRO = "${time}"
LINE_MACRO = "${line}"  # makes the text a template for the line instead of a prefix


class Prefix:
    """Makes the prefix of teed lines, as bytes, for each piece that is read.

    `${time}` becomes the local time when the launcher read the line, with milliseconds, in ISO 8601
    form: `2026-11-21T10:03:14.535`. The length of the prefix is constant.
    """

    def __init__(self, text: str, clock: Callable[[], float] = time.time) -> None:
        # A line end inside the prefix would split each line.
        text = text.replace("\r", " ").replace("\n", " ")
        self._parts = [encode(part) for part in text.split(TIME_MACRO)]
        self._clock = clock

    def __call__(self) -> bytes:
        """The prefix with the current time."""
        if len(self._parts) == 1:
            return self._parts[0]
        now = self._clock()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
        return f"{stamp}.{int(now % 1 * 1000):03d}".encode().join(self._parts)

    def format_lines(self, lines: Iterable[bytes]) -> bytes:
        """The lines, each with the prefix and a line end."""
        prefix = self()
        return b"".join(b"%b%b\n" % (prefix, line) for line in lines)


def encode(text: str) -> bytes:
    """The bytes of a text that the user gave, which need not be valid UTF-8."""
    return text.encode("utf-8", "surrogateescape")


class LinesToConsole(ByteSink):
    r"""Shows a stream line by line, each with its prefix.

    A line ends with `\n`, `\r\n` or a bare `\r`, so each state of a progress bar is a line: it gets
    the prefix and keeps its `\r`, and the next state overwrites it. Bytes are never decoded,
    dropped or changed. A bare `\r` at the end of a piece is kept, since `\n` may follow.

    An incomplete line is held back, so that it does not mix with the lines of other workers. If it
    may be a prompt, it is shown after `PROMPT_HOLD` or `PROMPT_HOLD_IN_LOG`. What follows continues
    it, or repeats it on a new line if others have written meanwhile. A terminal shows the current
    state of a progress bar before its `\r` arrives, which often comes only with the next state.

    Args:
        make_prefix: makes the prefix, for each piece.
        console: shows the lines.
        clock: monotonic seconds.
        max_line: maximum bytes of an incomplete line to keep.
    """

    def __init__(
        self,
        make_prefix: Callable[[], bytes],
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        max_line: int = MAX_LINE,
    ) -> None:
        self._make_prefix = make_prefix
        self._prefix = make_prefix()
        self._console = console
        self._clock = clock
        self._max_line = max_line
        self._rest = bytearray()  # the incomplete line
        self._shown = 0  # bytes of it, with its prefix, that the console shows
        self.is_bar = False  # the incomplete line is a state of a progress bar: next to a `\r`

    def write(self, data: bytes) -> None:
        """Show the lines that `data` completes."""
        self._prefix = self._make_prefix()
        has_bar = b"\r" in data or self._rest.endswith(b"\r")
        self._show(self._cut_bars(data) if has_bar else self._cut_lines(data))
        if len(self._rest) > self._max_line:
            self.close()
        hold = self._hold()
        if hold is None or len(self._rest) + len(self._prefix) <= self._shown:
            self.due = None
        elif self.due is None or self.is_bar:
            # A prompt that grows slowly, such as dots of progress, does not wait longer.
            self.due = self._clock() + hold

    def _hold(self) -> float | None:
        """Seconds to hold back the incomplete line; None if it is shown with its end only."""
        if not self._rest:
            return None
        if self._console.is_terminal:
            return HOLD if self.is_bar else PROMPT_HOLD
        return None if self.is_bar else PROMPT_HOLD_IN_LOG

    def _cut_lines(self, data: bytes) -> bytes:
        cut = data.rfind(b"\n")
        if cut < 0:
            self._rest += data
            return b""
        prefix = self._prefix
        lines = b"".join((prefix, self._rest, data[:cut].replace(b"\n", b"\n" + prefix), b"\n"))
        self._rest = bytearray(data[cut + 1 :])
        self.is_bar = False
        return lines

    def _cut_bars(self, data: bytes) -> bytes:
        text = bytes(self._rest) + data
        ends_in_return = text.endswith(b"\r")
        end = len(text) - ends_in_return
        cut = max(text.rfind(b"\n", 0, end), text.rfind(b"\r", 0, end)) + 1
        body, rest = text[:cut], text[cut:]
        follows_return = body.endswith(b"\r") if body else self.is_bar
        self.is_bar = bool(rest) and (ends_in_return or follows_return)
        self._rest = bytearray(rest)
        if not body:
            return b""
        prefix = self._prefix
        prefixed = (
            body.replace(b"\r", b"\r" + prefix)
            .replace(b"\r" + prefix + b"\n", b"\r\n")
            .replace(b"\n", b"\n" + prefix)
        )
        # `body` ends with a line end, which is now followed by a superfluous prefix.
        return prefix + prefixed[: len(prefixed) - len(prefix)]

    def unfinished(self) -> bytes:
        """The incomplete line with its prefix."""
        return self._prefix + self._rest if self._rest else b""

    def flush(self) -> None:
        """Show the incomplete line."""
        self.due = None
        unfinished = self.unfinished()
        self._console.put(unfinished, self, shown=self._shown)
        self._shown = len(unfinished)

    def close(self) -> None:
        """Show the incomplete line, with a line end."""
        if self._rest:
            self._show(self.unfinished() + b"\n")
        self._rest = bytearray()
        self.is_bar = False

    def _show(self, text: bytes) -> None:
        if text:
            self._console.put(text, self, shown=self._shown)
            self._shown = 0
            self.due = None


class MatchesToFile(ByteSink):
    """Appends the lines of one stream that contain one of the substrings to a file.

    Args:
        format_lines: returns the text for some lines, with their prefix or as JSON.
        substrings: the substrings to search for.
        file: may be shared with other streams; it stays open.
        max_line: maximum bytes of an incomplete line to keep.
    """

    def __init__(
        self,
        format_lines: Callable[[Iterable[bytes]], bytes],
        substrings: Sequence[bytes],
        file: ByteSink,
        max_line: int = MAX_LINE,
    ) -> None:
        self._format_lines = format_lines
        self._substrings = substrings
        self._file = file
        self._max_line = max_line
        self._rest = bytearray()

    def write(self, data: bytes) -> None:
        """Append the matching lines that `data` completes."""
        cut = data.rfind(b"\n") + 1
        if cut:
            whole = bytes(self._rest) + data[:cut]
            self._rest = bytearray(data[cut:])
            self._append_matches(whole[:-1])
        else:
            self._rest += data
            if len(self._rest) > self._max_line:
                self.close()

    def close(self) -> None:
        """Process the incomplete line as a whole line."""
        line, self._rest = bytes(self._rest), bytearray()
        if line:
            self._append_matches(line)

    def _append_matches(self, text: bytes) -> None:
        # Most pieces have no match: searching the whole piece first is faster.
        if self._matches(text):
            lines = (line for line in text.split(b"\n") if self._matches(line))
            self._file.write(self._format_lines(lines))

    def _matches(self, text: bytes) -> bool:
        return any(substring in text for substring in self._substrings)
