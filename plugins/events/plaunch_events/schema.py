"""The schema of events: the name, source and metadata keys of every event of an agent."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from plaunch.events import EventSource
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

# The metadata keys of every event.
COMMON_KEYS: Final = (
    "run_id",  # the id of the job
    "attempt",  # TORCHELASTIC_RESTART_COUNT: how often workers were restarted after failures
    "round",  # the number of the round; -1 before the first
    "host",  # the name of the host
    "role",  # the name of the workers
    "agent_pid",  # the process id of the launcher
    "group_rank",  # the rank of the node; -1 before it is known
    "ranks",  # the global ranks of this node, as "0-3,8"; empty before they are known
)
# Further keys of events that torchrun has too; `plaunch_torchrun` makes torchrun's events of them.
_TORCHRUN_KEYS: Final = ("backend", "entry_point", "group_world_size", "elapsed")
_WORKER_KEYS: Final = ("local_rank", "global_rank", "role_rank", "role_world_size", "worker_pid")


@plain_dataclass
class EventType(Value):
    """One type of event.

    Args:
        source: whether it is about the agent or a worker.
        keys: its metadata keys, in addition to `COMMON_KEYS`.
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
            ("duration", "world_size", "master_addr", "master_port", *_TORCHRUN_KEYS),
        ),
        "plaunch.rendezvous.failed": EventType(EventSource.AGENT, ("duration", "reason")),
        "plaunch.preload.completed": EventType(
            EventSource.AGENT, ("duration", "modules", "seconds")
        ),
        "plaunch.worker.started": EventType(
            EventSource.WORKER, (*_WORKER_KEYS, "forked", *_TORCHRUN_KEYS)
        ),
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
                *_TORCHRUN_KEYS,
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
                "headline",
                "place",
                "error_file",
                "last_lines",
                "is_first",
            ),
        ),
        "plaunch.restart.delayed": EventType(EventSource.AGENT, ("seconds",)),
        "plaunch.restart": EventType(EventSource.AGENT, ("cause", "reason", "max_restarts")),
        "plaunch.restart.completed": EventType(
            EventSource.AGENT,
            (
                "seconds_total",
                "seconds_noticing",
                "seconds_stopping",
                "seconds_waiting",
                "seconds_starting",
            ),
        ),
        "plaunch.membership.changed": EventType(EventSource.AGENT, ("kind", "node", "reason")),
        "plaunch.signal.received": EventType(
            EventSource.AGENT, ("signum", "signal_name", "action", "node")
        ),
        "plaunch.request.received": EventType(EventSource.AGENT, ("kind", "reason", "who")),
        "plaunch.stop.step": EventType(
            EventSource.AGENT, ("step", "signal_name", "stop_ranks", "seconds")
        ),
        "plaunch.console.awaited": EventType(EventSource.AGENT, ("waiting_bytes",)),
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
                "seconds_showing",
                "seconds_lost",
                "seconds_preloading",
                *_TORCHRUN_KEYS,
            ),
        ),
    }
)
