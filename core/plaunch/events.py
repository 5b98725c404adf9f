"""What happened, as data; where it goes is an event handler plugin's business.

`Event` has torchrun's names and fields, with real timestamps and plain values. `SCHEMA` has every
event that an agent of plaunch's records.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

EventMetadataValue = str | int | float | bool | None

SCHEMA_VERSION: Final = 1


class EventSource(str, enum.Enum):
    """What an event is about; the names are torchrun's."""

    AGENT = "AGENT"
    WORKER = "WORKER"


@dataclass
class Event:
    """One thing that happened.

    Args:
        name: one of `SCHEMA`; `torchelastic.worker.status.<STATE>` for torchrun's events.
        source: whether it is about the agent or about one worker.
        timestamp: seconds since the epoch, with fractions (torchrun writes 0).
        metadata: plain values, under the keys that `SCHEMA` has for the name.
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
        import json  # noqa: PLC0415 - not on the launch path

        if isinstance(data, Event):
            return data
        told = {"monotonic": 0.0, **json.loads(data)}
        told["source"] = EventSource[told["source"]]
        return Event(**{item.name: told[item.name] for item in fields(Event) if item.name in told})

    def serialize(self) -> str:
        """Write the event as one JSON object on one line."""
        import json  # noqa: PLC0415 - not on the launch path

        told = {item.name: getattr(self, item.name) for item in fields(self)}
        return json.dumps({**told, "source": self.source.value, "metadata": dict(self.metadata)})


@runtime_checkable
class EventHandler(Protocol):
    """Takes the events of one agent. Plugins implement it.

    Its factory is called with a `PluginContext` on the main thread, before anything has started.
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


# --- the stream of an agent -----------------------------------------------------------------------

# What every event has.
COMMON_KEYS: Final = (
    "run_id",  # the id of the job
    "attempt",  # TORCHELASTIC_RESTART_COUNT: how often workers were restarted after failures
    "round",  # how many worlds were formed before this one; -1 before the first
    "host",  # the name of the host
    "role",  # the name of the workers
    "agent_pid",  # the process id of the launcher
    "group_rank",  # the rank of the node; -1 before it is known
    "ranks",  # the global ranks of this node, as "0-3,8"; empty before they are known
)
# What those have beside that torchrun has as well; `plaunch_torchrun` makes its events of them.
TORCHRUN_KEYS: Final = ("backend", "entry_point", "group_world_size", "elapsed")
_WORKER_KEYS: Final = ("local_rank", "global_rank", "role_rank", "role_world_size", "worker_pid")


@dataclass(frozen=True)
class EventType:
    """One kind of event of an agent's stream.

    Args:
        source: its subject.
        keys: the keys of its metadata, beside `COMMON_KEYS`.
    """

    source: EventSource
    keys: tuple[str, ...]


SCHEMA: Final[Mapping[str, EventType]] = MappingProxyType(
    {
        "plaunch.launcher.started": EventType(
            EventSource.AGENT,
            (
                "plaunch",
                "python",
                "entry_point",
                "backend",
                "endpoint",
                "min_nodes",
                "max_nodes",
                "local_world_size",
                "max_restarts",
            ),
        ),
        "plaunch.rendezvous.begun": EventType(EventSource.AGENT, ()),
        "plaunch.rendezvous.completed": EventType(
            EventSource.AGENT,
            ("duration", "world_size", "master_addr", "master_port", *TORCHRUN_KEYS),
        ),
        "plaunch.rendezvous.failed": EventType(EventSource.AGENT, ("duration", "reason")),
        "plaunch.worker.started": EventType(EventSource.WORKER, (*_WORKER_KEYS, *TORCHRUN_KEYS)),
        "plaunch.workers.started": EventType(EventSource.AGENT, ("duration",)),
        "plaunch.worker.exited": EventType(
            EventSource.WORKER,
            (
                *_WORKER_KEYS,
                "exit_code",
                "signal_name",
                "stopped",
                "lifetime",
                "message",
                *TORCHRUN_KEYS,
            ),
        ),
        "plaunch.failure": EventType(
            EventSource.WORKER,
            (
                "global_rank",
                "failed_host",
                "worker_pid",
                "exit_code",
                "signal_name",
                "message",
                "error_file",
                "last_lines",
                "is_first",
            ),
        ),
        "plaunch.restart": EventType(EventSource.AGENT, ("cause", "reason", "max_restarts")),
        "plaunch.membership.changed": EventType(EventSource.AGENT, ("kind", "node", "reason")),
        "plaunch.signal.received": EventType(
            EventSource.AGENT, ("signum", "signal_name", "action", "node")
        ),
        "plaunch.request.received": EventType(EventSource.AGENT, ("kind", "reason", "who")),
        "plaunch.stop.step": EventType(
            EventSource.AGENT, ("step", "signal_name", "stop_ranks", "seconds")
        ),
        "plaunch.state.changed": EventType(EventSource.AGENT, ("old", "new")),
        "plaunch.launcher.finished": EventType(
            EventSource.AGENT,
            (
                "outcome",
                "reason",
                "exit_code",
                "seconds_total",
                "seconds_waiting",
                "seconds_starting",
                "seconds_training",
                "seconds_stopping",
                "seconds_lost",
                *TORCHRUN_KEYS,
            ),
        ),
    }
)
