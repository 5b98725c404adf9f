"""Events, and the contract of the event handlers that receive them.

`Event` has torchrun's names and fields, with real timestamps and plain values. `SCHEMA` of the
library `plaunch_events` lists the events.
"""

from __future__ import annotations

import enum
import time
from dataclasses import field, fields
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from plaunch.values import Record, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

EventMetadataValue = str | int | float | bool | None

SCHEMA_VERSION: Final = 1


class EventSource(str, enum.Enum):
    """The subject of an event; the names are torchrun's."""

    AGENT = "AGENT"
    WORKER = "WORKER"


@plain_dataclass
class Event(Record):
    """One event.

    Args:
        name: one of `plaunch_events.SCHEMA`, or `torchelastic.worker.status.<STATE>` for torchrun's
            events.
        source: its subject, the agent or one worker.
        timestamp: seconds since the epoch, with fractions (torchrun writes 0).
        metadata: plain values by the keys of the schema.
        monotonic: seconds of this host's monotonic clock; 0 if unknown.
        version: the schema's; it grows if a key is removed or changes its meaning.
    """

    name: str
    source: EventSource
    timestamp: float = field(default_factory=time.time)
    metadata: Mapping[str, EventMetadataValue] = field(default_factory=dict)
    monotonic: float = field(default_factory=time.monotonic)
    version: int = SCHEMA_VERSION

    def __str__(self) -> str:
        return self.serialize()

    @staticmethod
    def deserialize(data: str | Event) -> Event:
        """Parse the output of `serialize` or of torchrun; an `Event` is returned unchanged.

        Unknown fields of later versions are ignored.
        """
        import json  # not on the launch path

        if isinstance(data, Event):
            return data
        values = {"monotonic": 0.0, **json.loads(data)}
        values["source"] = EventSource[values["source"]]
        known = {item.name for item in fields(Event)}
        return Event(**{name: value for name, value in values.items() if name in known})

    def serialize(self) -> str:
        """Write the event as one JSON object on one line."""
        import json  # not on the launch path

        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return json.dumps({**values, "source": self.source.value, "metadata": dict(self.metadata)})


@runtime_checkable
class EventHandler(Protocol):
    """Receives the events of one agent. Plugins implement it.

    Its factory is called with a `PluginContext`, before anything has started. An attribute
    `options` of the factory names the keys that `--event-conf NAME.KEY=VALUE` accepts; their values
    are in the context's `options`. By default there are none. An attribute
    `creates_nothing = True` says that the factory opens and starts nothing: it is then called where
    a launch is only checked (`--dry-run`, `--doctor`), too, and the handler is dropped.

    `handle` and `close` are called on this handler's own thread, with every event in order. They
    may block: a queue holds some thousand events meanwhile; more are dropped and counted. At the
    end of the launch the handler has about two seconds for the rest. If `handle` raises, the event
    is lost and counted, and the next one follows after a pause, which grows up to a minute while
    `handle` keeps raising.
    """

    def handle(self, event: Event) -> None:
        """Handle one event."""

    def close(self) -> None:
        """Flush; called once, after the last event."""
