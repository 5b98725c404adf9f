"""The built-in event handlers.

`null` drops events, `console` prints one line for each, `jsonl` writes a file for programs, and
`otel` makes traces of them.
"""

from __future__ import annotations

from plaunch_events.console import ConsoleEventHandler
from plaunch_events.jsonl import JsonlEventHandler
from plaunch_events.null import NullEventHandler

__all__ = ["ConsoleEventHandler", "JsonlEventHandler", "NullEventHandler"]
