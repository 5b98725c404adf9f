"""The built-in event handlers: `null` drops events, `console` prints one line for each."""

from __future__ import annotations

from plaunch_events.console import ConsoleEventHandler
from plaunch_events.null import NullEventHandler

__all__ = ["ConsoleEventHandler", "NullEventHandler"]
