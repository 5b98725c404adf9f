"""The event handler for launches without a reader of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch.events import Event
    from plaunch.plugin import PluginContext


class NullEventHandler:
    """Drops every event; the default, as in torchrun."""

    wants_events = False  # so that there is no thread for it

    def __init__(self, context: PluginContext) -> None:
        del context

    def handle(self, event: Event) -> None:
        """Drop one event; it is not even called, as `wants_events` says."""

    def close(self) -> None:
        """Do nothing."""
