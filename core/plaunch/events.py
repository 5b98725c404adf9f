"""What happened, as data; where it goes is an event handler plugin's business.

`Event` has torchrun's names and fields, with real timestamps and plain values.
"""

from __future__ import annotations

import enum
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

EventMetadataValue = str | int | float | bool | None


class EventSource(str, enum.Enum):
    """Who an event is about; the names are torchrun's."""

    AGENT = "AGENT"
    WORKER = "WORKER"


@dataclass
class Event:
    """One thing that happened.

    Args:
        name: `torchelastic.worker.status.<STATE>` for torchrun's events.
        source: whether it is about the agent or about one worker.
        timestamp: seconds since the epoch, with fractions (torchrun writes 0).
        metadata: plain values; torchrun's keys where it has them.
    """

    name: str
    source: EventSource
    timestamp: float = field(default_factory=time.time)
    metadata: Mapping[str, EventMetadataValue] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.serialize()

    @staticmethod
    def deserialize(data: str | Event) -> Event:
        """Read what `serialize` wrote; an `Event` is returned as it is."""
        import json  # noqa: PLC0415 - not on the launch path

        if isinstance(data, Event):
            return data
        fields = json.loads(data)
        fields["source"] = EventSource[fields["source"]]
        return Event(**fields)

    def serialize(self) -> str:
        """Write the event as one JSON object on one line."""
        import json  # noqa: PLC0415 - not on the launch path

        fields = asdict(self)
        fields["source"] = self.source.value
        fields["metadata"] = dict(self.metadata)
        return json.dumps(fields)


@runtime_checkable
class EventHandler(Protocol):
    """Takes the events of one agent. Plugins implement it.

    `handle` is called in the agent's process for every event, in order; it should return at once.
    An exception from it is logged once and switches the handler off; it never harms the job.
    """

    def handle(self, event: Event) -> None:
        """Take one event."""

    def close(self) -> None:
        """Write out what is buffered; called once, after the last event."""
