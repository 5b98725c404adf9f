"""Recording events by the name of a handler, as torchrun's `events` does.

plaunch itself passes events to the handlers of a launch, and has no rendezvous events.
`to_torchrun` converts its events to torchrun's.
"""

from __future__ import annotations

import enum
import json
import logging
import os
import sys
from dataclasses import asdict, dataclass
from typing import Final

from plaunch.events import Event, EventHandler, EventSource
from plaunch.plugin import EVENT_HANDLERS, PluginContext, PluginManager

from plaunch_torchrun.elastic.metrics import CAME_TO_A_RESULT

__all__ = [
    "Event",
    "EventSource",
    "NodeState",
    "RdzvEvent",
    "construct_and_record_rdzv_event",
    "get_logging_handler",
    "record",
    "record_rdzv_event",
    "to_torchrun",
]

_RENDEZVOUS = "dynamic_rendezvous"


class NodeState(str, enum.Enum):
    """The state of a node in a rendezvous; names and values are torchrun's."""

    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass
class RdzvEvent:
    """One thing that happened in a rendezvous; the fields are torchrun's.

    Args:
        name: where it happened: a file and a method.
        run_id: the id of the job.
        message: what happened.
        hostname: on which host.
        pid: in which process.
        node_state: the state of the node.
        master_endpoint: the endpoint of the store, where known.
        rank: the node's rank, where known.
        local_id: the number of the handler in its process.
        error_trace: the traceback, of an error.
    """

    name: str
    run_id: str
    message: str
    hostname: str
    pid: int
    node_state: NodeState
    master_endpoint: str = ""
    rank: int | None = None
    local_id: int | None = None
    error_trace: str = ""

    def __str__(self) -> str:
        return self.serialize()

    @staticmethod
    def deserialize(data: str | RdzvEvent) -> RdzvEvent:
        """Read what `serialize` wrote; an event is returned as it is."""
        if isinstance(data, RdzvEvent):
            return data
        values = json.loads(data)
        values["node_state"] = NodeState[values["node_state"]]
        return RdzvEvent(**values)

    def serialize(self) -> str:
        """Write the event as one JSON object on one line."""
        return json.dumps({**asdict(self), "node_state": self.node_state.value})


class _PluginHandler(logging.Handler):
    """Passes log records, which are serialized events, to an event handler."""

    def __init__(self, handler: EventHandler) -> None:
        super().__init__()
        self._handler = handler

    def emit(self, record: logging.LogRecord) -> None:
        self._handler.handle(Event.deserialize(record.getMessage()))


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Create a `logging` handler for the event handler `destination`, installed or built in.

    Raises:
        UnknownNameError: there is no such event handler.
    """
    if destination in ("null", _RENDEZVOUS):
        return logging.NullHandler()
    context = PluginContext(run_id="", role="", host=os.uname().nodename, log_dir=None, settings={})
    return _PluginHandler(PluginManager.create().get(EVENT_HANDLERS, destination)(context))


def record(event: Event, destination: str = "null") -> None:
    """Pass an event to the event handler `destination`.

    Raises:
        UnknownNameError: there is no such event handler.
    """
    _logger(destination).info("%s", event.serialize())


def record_rdzv_event(event: RdzvEvent) -> None:
    """Log `event` to `torchelastic-events-dynamic_rendezvous`, which has no listener by default."""
    _logger(_RENDEZVOUS).info("%s", event.serialize())


def construct_and_record_rdzv_event(
    run_id: str,
    message: str,
    node_state: NodeState,
    name: str = "",
    hostname: str = "",
    pid: int | None = None,
    master_endpoint: str = "",
    local_id: int | None = None,
    rank: int | None = None,
) -> None:
    """Create and record a `RdzvEvent`, if there is a listener; see `RdzvEvent` for the arguments.

    The host, process and name default to those of the caller.
    """
    if all(isinstance(handler, logging.NullHandler) for handler in _logger(_RENDEZVOUS).handlers):
        return
    import traceback  # for listeners only

    code = sys._getframe(1).f_code
    record_rdzv_event(
        RdzvEvent(
            name=f"{os.path.basename(code.co_filename)}:{name or code.co_name}",
            run_id=run_id,
            message=message,
            hostname=hostname or os.uname().nodename,
            pid=pid or os.getpid(),
            node_state=node_state,
            master_endpoint=master_endpoint,
            rank=rank,
            local_id=local_id,
            error_trace=traceback.format_exc() if node_state is NodeState.FAILED else "",
        )
    )


def _logger(destination: str) -> logging.Logger:
    logger = logging.getLogger(f"torchelastic-events-{destination}")
    if not logger.handlers:
        logger.addHandler(get_logging_handler(destination))
        # torchrun uses LOGLEVEL here too; with WARNING it drops every event.
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return logger


# --- converting plaunch's events ------------------------------------------------------------------

_PREFIX: Final = "torchelastic.worker.status."


def to_torchrun(event: Event) -> Event | None:
    """Convert an event to torchrun's; return None if torchrun has no such event.

    Names, sources, order and metadata keys are torchrun's; so is the JSON text under the key
    `metadata`, in which values of workers are lists with one item. Times are real ones. An event of
    torchrun is returned as it is.
    """
    if event.name.startswith(_PREFIX):
        return event
    state = _torchrun_state(event)
    if not state:
        return None
    metadata = event.metadata
    inner: dict[str, object] = {
        "group_world_size": metadata.get("group_world_size"),
        "entry_point": metadata.get("entry_point"),
    }
    pid = None
    if event.source is EventSource.WORKER:
        pid = metadata.get("worker_pid")
        keys = ("local_rank", "role_rank", "role_world_size", "exit_code", "worker_pid")
        inner.update({key: [metadata.get(key)] for key in keys})
    duration = metadata.get("duration")
    return Event(
        name=f"{_PREFIX}{state}",
        source=event.source,
        timestamp=event.timestamp,
        monotonic=event.monotonic,
        version=event.version,
        metadata={
            "run_id": metadata.get("run_id"),
            "global_rank": metadata.get("global_rank"),
            "group_rank": metadata.get("group_rank"),
            "worker_id": None if pid is None else str(pid),
            "role": metadata.get("role"),
            "hostname": metadata.get("host"),
            "state": state,
            "total_run_time": metadata.get("elapsed"),
            "rdzv_backend": metadata.get("backend"),
            "raw_error": metadata.get("message"),
            "metadata": json.dumps(inner),
            "agent_restarts": metadata.get("attempt"),
            "duration_ms": duration * 1000 if isinstance(duration, (int, float)) else None,
        },
    )


def _torchrun_state(event: Event) -> str:
    metadata = event.metadata
    if event.name == "plaunch.rendezvous.completed":
        return "RENDEZVOUS"
    if event.name == "plaunch.worker.started":
        return "START"
    if event.name == "plaunch.worker.exited":
        if metadata.get("stopped"):
            return "TERMINATED"
        return "SUCCEEDED" if metadata.get("exit_code") == 0 else "FAILED"
    if event.name == "plaunch.launcher.finished":
        return "SUCCEEDED" if metadata.get("outcome") in CAME_TO_A_RESULT else "FAILED"
    return ""
