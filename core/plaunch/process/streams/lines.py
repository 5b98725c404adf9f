"""Cutting a stream of bytes into lines, each with a prefix."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LINE = 1 << 20  # bytes; a longer line is shown in pieces
TIME_MACRO = "${time}"


class Prefix:
    """What stands before a teed line, as bytes; made anew for whatever was read at once.

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


class PrefixedLines:
    r"""Puts a prefix before every line of one stream, in whatever pieces the stream arrives.

    A line ends with `\n`, `\r\n` or a bare `\r`, so that each state of a progress bar is a line of
    its own: it gets the prefix and keeps its `\r`, and the next state overwrites it. Bytes are
    never decoded, dropped or changed. Only whole lines come out; what is unfinished waits for its
    end, or for `close`. A bare `\r` at the end of a piece waits too, since a `\n` may follow it.

    Args:
        make_prefix: the prefix, made anew for each piece.
        max_line: how many bytes of a line are waited for.
    """

    def __init__(self, make_prefix: Callable[[], bytes], max_line: int = MAX_LINE) -> None:
        self._make_prefix = make_prefix
        self._prefix = make_prefix()
        self._max_line = max_line
        self._rest = bytearray()
        self.is_bar = False  # what is unfinished is a state of a progress bar: next to a `\r`

    def feed(self, data: bytes) -> bytes:
        """Take the next piece of the stream; return the lines that it completes, prefixed."""
        prefix = self._prefix = self._make_prefix()
        if b"\r" in data or self._rest.endswith(b"\r"):
            return self._feed_bars(data, prefix)
        cut = data.rfind(b"\n")
        if cut < 0:
            self._rest += data
            return self._too_long()
        lines = b"".join((prefix, self._rest, data[:cut].replace(b"\n", b"\n" + prefix), b"\n"))
        self._rest = bytearray(data[cut + 1 :])
        self.is_bar = False
        return lines

    def _feed_bars(self, data: bytes, prefix: bytes) -> bytes:
        text = bytes(self._rest) + data
        ends_in_return = text.endswith(b"\r")
        end = len(text) - ends_in_return
        cut = max(text.rfind(b"\n", 0, end), text.rfind(b"\r", 0, end)) + 1
        body, rest = text[:cut], text[cut:]
        follows_return = body.endswith(b"\r") if body else self.is_bar
        self.is_bar = bool(rest) and (ends_in_return or follows_return)
        self._rest = bytearray(rest)
        if not body:
            return self._too_long()
        prefixed = (
            body.replace(b"\r", b"\r" + prefix)
            .replace(b"\r" + prefix + b"\n", b"\r\n")
            .replace(b"\n", b"\n" + prefix)
        )
        # `body` ends with a line end, behind which a prefix too many now stands.
        return prefix + prefixed[: len(prefixed) - len(prefix)] + self._too_long()

    def _too_long(self) -> bytes:
        return self.close() if len(self._rest) > self._max_line else b""

    def unfinished(self) -> bytes:
        """The unfinished line as it would be shown now; it stays unfinished."""
        return self._prefix + self._rest if self._rest else b""

    def close(self) -> bytes:
        """End the unfinished line with a newline and return it; empty if there is none."""
        line = self.unfinished()
        self._rest = bytearray()
        self.is_bar = False
        return line + b"\n" if line else b""
