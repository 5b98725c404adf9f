"""Cutting a stream of bytes into lines, to prefix all of them or to pick some."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_LINE = 1 << 20  # bytes; a longer line is shown in pieces


def _fixed(prefix: bytes) -> Callable[[], bytes]:
    return lambda: prefix


class PrefixedLines:
    r"""Puts a prefix before every line of one stream, in whatever pieces the stream arrives.

    A line ends with `\n`, `\r\n` or a bare `\r`, so that each state of a progress bar is a line of
    its own: it gets the prefix and keeps its `\r`, and the next state overwrites it. Bytes are
    never decoded, dropped or changed. Only whole lines come out; what is unfinished waits for its
    end, or for `close`. A bare `\r` at the end of a piece waits too, since a `\n` may follow it.

    Args:
        prefix: the prefix, or a function that makes it anew for each piece.
        max_line: how many bytes of a line are waited for.
    """

    def __init__(self, prefix: bytes | Callable[[], bytes], max_line: int = MAX_LINE) -> None:
        self._make_prefix = prefix if callable(prefix) else None
        self._set_prefix(prefix() if callable(prefix) else prefix)
        self._max_line = max_line
        self._rest = bytearray()
        self._is_bar = False

    @property
    def is_bar(self) -> bool:
        r"""Whether the unfinished line is a state of a progress bar: a `\r` is next to it."""
        return self._is_bar

    def feed(self, data: bytes) -> bytes:
        """Take the next piece of the stream; return the lines that it completes, prefixed."""
        if self._make_prefix is not None:
            self._set_prefix(self._make_prefix())
        if b"\r" in data or self._rest.endswith(b"\r"):
            return self._feed_bars(data)
        cut = data.rfind(b"\n")
        if cut < 0:
            self._rest += data
            return self._too_long()
        lines = b"".join(
            (self._prefix, self._rest, data[:cut].replace(b"\n", self._newline), b"\n")
        )
        self._rest = bytearray(data[cut + 1 :])
        self._is_bar = False
        return lines

    def _set_prefix(self, prefix: bytes) -> None:
        # A line end inside the prefix would make two lines of each.
        self._prefix = prefix.replace(b"\r", b" ").replace(b"\n", b" ")
        self._newline = b"\n" + self._prefix
        self._return = b"\r" + self._prefix

    def _feed_bars(self, data: bytes) -> bytes:
        text = bytes(self._rest) + data
        ends_in_return = text.endswith(b"\r")
        end = len(text) - ends_in_return
        cut = max(text.rfind(b"\n", 0, end), text.rfind(b"\r", 0, end)) + 1
        body, rest = text[:cut], text[cut:]
        follows_return = body.endswith(b"\r") if body else self._is_bar
        self._is_bar = bool(rest) and (ends_in_return or follows_return)
        self._rest = bytearray(rest)
        if not body:
            return self._too_long()
        prefixed = (
            body.replace(b"\r", self._return)
            .replace(self._return + b"\n", b"\r\n")
            .replace(b"\n", self._newline)
        )
        # `body` ends with a line end, behind which a prefix too many now stands.
        return self._prefix + prefixed[: len(prefixed) - len(self._prefix)] + self._too_long()

    def _too_long(self) -> bytes:
        return self.close() if len(self._rest) > self._max_line else b""

    def unfinished(self) -> bytes:
        """The unfinished line as it would be shown now; it stays unfinished."""
        return self._prefix + self._rest if self._rest else b""

    def close(self) -> bytes:
        """End the unfinished line with a newline and return it; empty if there is none."""
        line = self.unfinished()
        self._rest = bytearray()
        self._is_bar = False
        return line + b"\n" if line else b""


class MatchingLines:
    """Picks the lines of one stream that contain one of some substrings, and prefixes them."""

    def __init__(
        self,
        prefix: bytes | Callable[[], bytes],
        substrings: Sequence[bytes],
        max_line: int = MAX_LINE,
    ) -> None:
        self._prefix = prefix if callable(prefix) else _fixed(prefix)
        self._substrings = tuple(substrings)
        self._max_line = max_line
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Take the next piece of the stream; return the matching lines that it completes."""
        cut = data.rfind(b"\n") + 1
        if cut == 0:
            self._rest += data
            return self.close() if len(self._rest) > self._max_line else b""
        whole = bytes(self._rest) + data[:cut]
        self._rest = bytearray(data[cut:])
        # Most pieces match nothing: three searches of the whole beat thousands of small ones.
        if not self._matches(whole):
            return b""
        return b"".join(
            b"%b%b\n" % (self._prefix(), line)
            for line in whole[:-1].split(b"\n")
            if self._matches(line)
        )

    def _matches(self, text: bytes) -> bool:
        return any(substring in text for substring in self._substrings)

    def close(self) -> bytes:
        """Take the unfinished line as a whole one; return it if it matches."""
        line = bytes(self._rest)
        self._rest = bytearray()
        return b"%b%b\n" % (self._prefix(), line) if line and self._matches(line) else b""
