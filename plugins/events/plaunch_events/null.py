"""The event handler `null`, which drops all events."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch.events import Event
    from plaunch.plugin import PluginContext


class NullEventHandler:
    """Drops every event; the default, as in torchrun."""

    wants_events = False  # no queue and no thread

    def __init__(self, context: PluginContext) -> None:
        del context

    def handle(self, event: Event) -> None:
        """Drop the event; never called, because of `wants_events`."""

    def close(self) -> None:
        """Do nothing."""
