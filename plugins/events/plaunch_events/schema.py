"""The schema of events: name, source and metadata keys of each; the metadata of workers."""

from __future__ import annotations

import signal
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from plaunch.events import EventSource
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.agent import WorkerInfo
    from plaunch.events import EventMetadataValue
    from plaunch.process import ProcessFailure

    Metadata = dict[str, EventMetadataValue]

MAX_TEXT = 8192  # characters of a message, and of last lines
_MAX_LINES = 20
_NO_FILE = "<N/A>"  # in a failure whose worker wrote no error file

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
        "plaunch.restart": EventType(
            EventSource.AGENT, ("cause", "reason", "decision", "max_restarts")
        ),
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


def worker_metadata(worker: WorkerInfo) -> Metadata:
    """The metadata that identifies a worker."""
    return {
        "local_rank": worker.local_rank,
        "global_rank": worker.global_rank,
        "role_rank": worker.role_rank,
        "role_world_size": worker.role_world_size,
        "worker_pid": worker.pid,
    }


def failure_metadata(rank: int, failure: ProcessFailure) -> Metadata:
    """The metadata of the failure of a global rank."""
    from plaunch.process import shorten  # failures only

    # That it has exited is in other keys.
    message = "" if failure.message == failure.exit_sentence() else end_of(failure.text)
    lines = shorten([line.rstrip("\r\n") for line in failure.last_lines], _MAX_LINES, MAX_TEXT)
    return {
        "global_rank": rank,
        "failed_host": failure.host,
        "worker_pid": failure.pid,
        "exit_code": failure.exitcode,
        "signal_name": signal_name(failure.exitcode),
        "message": message,
        "headline": failure.headline,
        "place": failure.place,
        "error_file": None if failure.error_file == _NO_FILE else failure.error_file,
        "last_lines": "\n".join(lines),
    }


def signal_name(exitcode: int) -> str | None:
    """The name of the signal that ended a worker; None if it exited."""
    if exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


def end_of(text: str) -> str:
    """The text, cut to its last `MAX_TEXT` characters."""
    return text if len(text) <= MAX_TEXT else f"... {text[-MAX_TEXT:]}"
