"""Recording events by the name of their handler, as torchrun's `events` does.

plaunch itself hands events to the handler that a launch selected, and has no rendezvous events.
"""

from __future__ import annotations

import enum
import json
import logging
import os
import sys
from dataclasses import asdict, dataclass

from plaunch.events import Event, EventHandler, EventSource
from plaunch.plugin import EVENT_HANDLERS, PluginContext, PluginManager

__all__ = [
    "Event",
    "EventSource",
    "NodeState",
    "RdzvEvent",
    "construct_and_record_rdzv_event",
    "get_logging_handler",
    "record",
    "record_rdzv_event",
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
    """Hands events, which are records of one line, to an event handler of plaunch's."""

    def __init__(self, handler: EventHandler) -> None:
        super().__init__()
        self._handler = handler

    def emit(self, record: logging.LogRecord) -> None:
        self._handler.handle(Event.deserialize(record.getMessage()))


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """A handler of Python's logging for the event handler `destination`, installed or built in.

    Raises:
        UnknownNameError: there is no such event handler.
    """
    if destination in ("null", _RENDEZVOUS):
        return logging.NullHandler()
    context = PluginContext(run_id="", role="", host=os.uname().nodename, log_dir=None, settings={})
    return _PluginHandler(PluginManager.create().get(EVENT_HANDLERS, destination)(context))


def record(event: Event, destination: str = "null") -> None:
    """Hand `event` to the event handler `destination`.

    Raises:
        UnknownNameError: there is no such event handler.
    """
    _logger(destination).info("%s", event.serialize())


def record_rdzv_event(event: RdzvEvent) -> None:
    """Log `event` to `torchelastic-events-dynamic_rendezvous`, where nobody listens by default."""
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
    """Make a `RdzvEvent` and record it, if anybody listens; see `RdzvEvent` for the arguments.

    A missing host, process or name is that of the caller.
    """
    if all(isinstance(handler, logging.NullHandler) for handler in _logger(_RENDEZVOUS).handlers):
        return
    import traceback  # noqa: PLC0415 - for listeners only

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
        # torchrun takes LOGLEVEL here too, with which WARNING would drop every event.
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return logger
