"""What stands before a teed line, when it tells the time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TIME_MACRO = "${time}"


class TimedPrefix:
    """A prefix with `${time}` in it, made anew for whatever was read at once.

    The time is the local one when the launcher read the line, with milliseconds, in ISO 8601 form:
    `2026-11-21T10:03:14.535`. Its length never changes.
    """

    def __init__(self, text: str, clock: Callable[[], float] = time.time) -> None:
        self._parts = text.split(TIME_MACRO)
        self._clock = clock

    def __call__(self) -> str:
        """The prefix of this moment."""
        now = self._clock()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
        return f"{stamp}.{int(now % 1 * 1000):03d}".join(self._parts)


def encode_prefix(text: str) -> bytes | Callable[[], bytes]:
    """The prefix as bytes, or a function that makes it when it tells the time."""
    if TIME_MACRO not in text:
        return _encode(text)
    timed = TimedPrefix(text)
    return lambda: _encode(timed())


def without_time(text: str) -> str:
    """The prefix for a stream whose lines are read long after they were written."""
    return text.replace(TIME_MACRO, "")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
