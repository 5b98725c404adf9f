"""What becomes of teed lines: each with a prefix to the console, some to a file as well."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plaunch_logs_default.streams.sinks import HOLD, ByteSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from plaunch_logs_default.streams.console import Console

MAX_LINE = 1 << 20  # bytes; a longer line is shown in pieces
TIME_MACRO = "${time}"
LINE_MACRO = "${line}"  # the text is no prefix: it has a place for the line


class Prefix:
    """The text before a teed line, as bytes; made again for each piece that is read.

    `${time}` in it becomes the local time when the launcher read the line, with milliseconds, in
    ISO 8601 form: `2026-11-21T10:03:14.535`. Its length never changes.
    """

    def __init__(self, text: str, clock: Callable[[], float] = time.time) -> None:
        # A line end inside the prefix would make two lines of each.
        text = text.replace("\r", " ").replace("\n", " ")
        self._parts = [encode(part) for part in text.split(TIME_MACRO)]
        self._clock = clock

    def __call__(self) -> bytes:
        """The prefix of this moment."""
        if len(self._parts) == 1:
            return self._parts[0]
        now = self._clock()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
        return f"{stamp}.{int(now % 1 * 1000):03d}".encode().join(self._parts)


def encode(text: str) -> bytes:
    """Text of a user as the bytes that it was."""
    return text.encode("utf-8", "surrogateescape")


class LinesToConsole(ByteSink):
    r"""Shows a stream line by line, each with its prefix, however it is cut into pieces.

    A line ends with `\n`, `\r\n` or a bare `\r`, so that each state of a progress bar is a line of
    its own: it gets the prefix and keeps its `\r`, and the next state overwrites it. Bytes are
    never decoded, dropped or changed. Only whole lines are shown; what is unfinished waits for its
    end, or for `close`. A bare `\r` at the end of a piece waits too, since a `\n` may follow it.

    On a terminal the current state of a progress bar is shown although nothing says yet that it is
    complete: its `\r` often comes only with the next state.

    Args:
        make_prefix: the prefix, made again for each piece.
        console: where the lines are shown.
        clock: monotonic seconds.
        max_line: how many bytes of a line are waited for.
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
        self._rest = bytearray()  # what is unfinished
        self._shown = 0  # bytes of that, with its prefix, that are on the console
        self.is_bar = False  # what is unfinished is a state of a progress bar: next to a `\r`

    def write(self, data: bytes) -> None:
        """Show the lines that `data` completes."""
        self._prefix = self._make_prefix()
        has_bar = b"\r" in data or self._rest.endswith(b"\r")
        self._show(self._cut_bars(data) if has_bar else self._cut_lines(data))
        if len(self._rest) > self._max_line:
            self.close()
        if self.is_bar and self._console.is_terminal:
            self.due = self._clock() + HOLD

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
        # `body` ends with a line end, behind which a prefix too many now stands.
        return prefix + prefixed[: len(prefixed) - len(prefix)]

    def unfinished(self) -> bytes:
        """The unfinished line as it would be shown now; it stays unfinished."""
        return self._prefix + self._rest if self._rest else b""

    def flush(self) -> None:
        """Show the state of a progress bar."""
        self.due = None
        unfinished = self.unfinished()
        self._console.put(unfinished, self, shown=self._shown)
        self._shown = len(unfinished)

    def close(self) -> None:
        """Show what is unfinished, and end its line."""
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
    """Adds the lines of one stream that contain one of some substrings to a file, prefixed.

    Args:
        make_prefix: the prefix, made again for each piece.
        substrings: what is looked for.
        file: may be that of other streams too; it stays open.
        max_line: how many bytes of a line are waited for.
    """

    def __init__(
        self,
        make_prefix: Callable[[], bytes],
        substrings: Sequence[bytes],
        file: ByteSink,
        max_line: int = MAX_LINE,
    ) -> None:
        self._make_prefix = make_prefix
        self._substrings = substrings
        self._file = file
        self._max_line = max_line
        self._rest = bytearray()

    def write(self, data: bytes) -> None:
        """Add the matching lines that `data` completes."""
        cut = data.rfind(b"\n") + 1
        if cut:
            whole = bytes(self._rest) + data[:cut]
            self._rest = bytearray(data[cut:])
            self._pick(whole[:-1])
        else:
            self._rest += data
            if len(self._rest) > self._max_line:
                self.close()

    def close(self) -> None:
        """Take the unfinished line as a whole one."""
        line, self._rest = bytes(self._rest), bytearray()
        if line:
            self._pick(line)

    def _pick(self, text: bytes) -> None:
        # Most pieces match nothing: three searches of the whole beat thousands of small ones.
        if self._matches(text):
            lines = (line for line in text.split(b"\n") if self._matches(line))
            self._file.write(self._format(lines))

    def _format(self, lines: Iterable[bytes]) -> bytes:
        prefix = self._make_prefix()
        return b"".join(b"%b%b\n" % (prefix, line) for line in lines)

    def _matches(self, text: bytes) -> bool:
        return any(substring in text for substring in self._substrings)
