"""What happened, as data; where it goes is an event handler plugin's business.

`Event` has torchrun's names and fields, with real timestamps and plain values. The library
`plaunch_events` has the events that there are, in its `SCHEMA`.
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
    """What an event is about; the names are torchrun's."""

    AGENT = "AGENT"
    WORKER = "WORKER"


@plain_dataclass
class Event(Record):
    """One thing that happened.

    Args:
        name: one of `plaunch_events.SCHEMA`, or `torchelastic.worker.status.<STATE>` for torchrun's
            events.
        source: whether it is about the agent or about one worker.
        timestamp: seconds since the epoch, with fractions (torchrun writes 0).
        metadata: plain values, under the keys that the schema has for the name.
        monotonic: seconds on this host's clock that never goes back; 0 if unknown.
        version: of the schema; it grows when a key changes its meaning or goes, not when one comes.
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
        """Read what `serialize` or torchrun wrote; an `Event` is returned as it is.

        What a later version has beside our fields is left out.
        """
        import json  # not on the launch path

        if isinstance(data, Event):
            return data
        told = {"monotonic": 0.0, **json.loads(data)}
        told["source"] = EventSource[told["source"]]
        return Event(**{item.name: told[item.name] for item in fields(Event) if item.name in told})

    def serialize(self) -> str:
        """Write the event as one JSON object on one line."""
        import json  # not on the launch path

        told = {item.name: getattr(self, item.name) for item in fields(self)}
        return json.dumps({**told, "source": self.source.value, "metadata": dict(self.metadata)})


@runtime_checkable
class EventHandler(Protocol):
    """Takes the events of one agent. Plugins implement it.

    Its factory is called with a `PluginContext`, before anything has started.
    An attribute `options` of the factory names the keys that `--event-conf NAME.KEY=VALUE` takes,
    which the context then has in its own `options`; without the attribute there are none.

    `handle` and `close` are called on a thread that is this handler's alone, with every event in
    order. It may block: events wait meanwhile, some thousands at most, and further ones are dropped
    and counted. At the end of the launch it has about two seconds for what is left. An event with
    which `handle` raises is lost, and counted; the next one comes after a pause, which grows up to
    a minute while it goes on to raise.
    """

    def handle(self, event: Event) -> None:
        """Take one event."""

    def close(self) -> None:
        """Write out what is buffered; called once, after the last event."""
