"""The event handler for people: events as lines on the launcher's stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from plaunch.events import Event, EventMetadataValue
    from plaunch.plugin import PluginContext

_STATUS = "torchelastic.worker.status."

# What a reader looks for comes first; other keys follow in the order of the event.
_FIRST_KEYS = ("run_id", "role", "hostname", "group_rank", "global_rank", "local_rank")


class ConsoleEventHandler:
    """Prints each event as one line: local time, source, state, then `key=value` pairs.

        2026-01-31 08:15:00.250+0100 WORKER SUCCEEDED run_id=exp7 global_rank=3 exit_code=0

    Values with spaces or control characters are quoted, keys without a value are left out. The
    state is the end of a `torchelastic.worker.status.*` name; other names are printed in full.

    Args:
        context: the launch; not needed.
        stream: takes the lines; None is whatever `sys.stderr` is at the time.
    """

    def __init__(self, context: PluginContext, stream: TextIO | None = None) -> None:
        del context
        self._stream = stream

    def handle(self, event: Event) -> None:
        """Print one event at once; raises OSError if the stream is gone."""
        stream = self._stream or sys.stderr
        if stream is not None:
            stream.write(_format(event) + "\n")
            stream.flush()

    def close(self) -> None:
        """Do nothing: every line has been written already."""


def _format(event: Event) -> str:
    words = [_format_time(event.timestamp), event.source.value]
    words.append(_quote(event.name.removeprefix(_STATUS)))
    metadata = event.metadata
    keys = [key for key in _FIRST_KEYS if key in metadata]
    keys += [key for key in metadata if key not in _FIRST_KEYS]
    words += [
        f"{_quote(key)}={_format_value(metadata[key])}" for key in keys if _has(metadata[key])
    ]
    return " ".join(words)


def _has(value: EventMetadataValue) -> bool:
    return value is not None


def _format_value(value: EventMetadataValue) -> str:
    return _quote(value) if isinstance(value, str) else str(value)


def _quote(text: str) -> str:
    """`text` as it is if it is one plain word, else as a Python literal on one line."""
    if text and text.isprintable() and not any(char in " '\"=" for char in text):
        return text
    return repr(text)


def _format_time(timestamp: float) -> str:
    """Seconds since the epoch as local time with milliseconds and the distance from UTC."""
    milliseconds = int(timestamp * 1000)
    local = time.localtime(milliseconds // 1000)
    seconds, zone = time.strftime("%Y-%m-%d %H:%M:%S", local), time.strftime("%z", local)
    return f"{seconds}.{milliseconds % 1000:03d}{zone}"
