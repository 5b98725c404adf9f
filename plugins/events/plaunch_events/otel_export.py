"""The process that exports traces: it converts events to spans of OpenTelemetry.

It exits after its launcher.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from plaunch.events import Event

from plaunch_events.time_accounting import TimeAccount

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

LAST_WAIT = 10.0  # seconds to export the remaining spans after the last event
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_PHASES = {"lingering": "waiting for nodes", "showing": "waiting for the console"}
_LAUNCH_KEYS = ("run_id", "host", "role", "agent_pid")
# Events that become events of the current round's span.
_ROUND_EVENTS = frozenset(
    {
        "plaunch.membership.changed",
        "plaunch.rendezvous.failed",
        "plaunch.request.received",
        "plaunch.restart",
        "plaunch.restart.completed",
        "plaunch.signal.received",
        "plaunch.state.changed",
        "plaunch.stop.step",
    }
)


def main(trace_id: str, lines: Iterable[str]) -> int:
    """Export the spans of one agent; return the exit code, 1 if nothing can be exported.

    Args:
        trace_id: 32 hexadecimal digits; if empty, the id of `TRACEPARENT`, or that of the run id.
        lines: events, as written by `Event.serialize`.
    """
    logging.basicConfig(level=logging.WARNING, format="plaunch: otel: %(message)s")
    logger = logging.getLogger("plaunch")
    events = _read(lines)
    first = next(events, None)
    if first is None:
        return 0
    try:
        exporters = list(create_exporters(os.environ))
        provider, parent = create_provider(first, trace_id, os.environ)
    except Exception as error:  # noqa: BLE001 - the end of this process
        logger.error("traces cannot be exported: %s: %s", type(error).__name__, error)
        return 1
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    spans = Spans(provider.get_tracer("plaunch"), parent)
    spans.handle(first)
    for event in events:
        spans.handle(event)
    spans.close()
    threading.Timer(LAST_WAIT, _exit_process).start()
    provider.shutdown()
    return 0


def create_exporters(environ: Mapping[str, str]) -> Iterator[SpanExporter]:
    """Create the exporters that `OTEL_TRACES_EXPORTER` names; by default `otlp`.

    Raises:
        LookupError: no installed package provides one of the names.
    """
    from importlib.metadata import entry_points  # once events have come

    for word in environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        name = word.strip()
        if name in ("", "none"):
            continue
        if name == "otlp":
            protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get(
                "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
            )
            name = _PROTOCOLS.get(protocol, protocol)
        found = tuple(entry_points(group="opentelemetry_traces_exporter", name=name))
        if not found:
            raise LookupError(f"no exporter {name!r} is installed (OTEL_TRACES_EXPORTER)")
        yield found[0].load()()


def create_provider(
    event: Event, trace_id: str, environ: Mapping[str, str]
) -> tuple[TracerProvider, Any]:
    """Create the provider for the agent that recorded `event`, and its parent context, or None."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = None
    if not trace_id and environ.get("TRACEPARENT"):
        carrier = {
            name.lower(): environ[name] for name in ("TRACEPARENT", "TRACESTATE") if name in environ
        }
        context = TraceContextTextMapPropagator().extract(carrier)
        if get_current_span(context).get_span_context().is_valid:
            parent = context
    number = int(trace_id, 16) if trace_id else trace_id_of(str(event.metadata.get("run_id")))

    class OneTrace(IdGenerator):
        """Random span ids in one trace."""

        def generate_trace_id(self) -> int:
            return number

        def generate_span_id(self) -> int:
            return RandomIdGenerator().generate_span_id()

    provider = TracerProvider(
        resource=_resource(event), id_generator=OneTrace(), shutdown_on_exit=False
    )
    return provider, parent


def _resource(event: Event) -> Resource:
    """The resource that identifies the agent; OpenTelemetry's variables take precedence."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    metadata = event.metadata
    own = {
        "service.name": "plaunch",
        "service.instance.id": f"{metadata.get('host')}-{metadata.get('agent_pid')}",
        "host.name": metadata.get("host"),
        "process.pid": metadata.get("agent_pid"),
        "plaunch.run_id": metadata.get("run_id"),
        "plaunch.role": metadata.get("role"),
    }
    given = OTELResourceDetector().detect().attributes
    missing: Any = {key: value for key, value in own.items() if key not in given}
    return Resource.create(missing)


def _read(lines: Iterable[str]) -> Iterator[Event]:
    """The events in `lines`, up to the last event of the launch."""
    for line in lines:
        event = Event.deserialize(line)
        yield event
        if event.name == "plaunch.launcher.finished":
            return


def _exit_process() -> None:
    # Threads of an exporter that hangs would keep the process alive.
    os._exit(1)


class Spans:
    """Converts the events of one agent, in order, to spans.

    The span `launch` contains a span `round N` for each round. A round contains its phases
    (`rendezvous`, `starting`, `training`, `stopping`, `waiting for nodes`, `waiting for the
    console`) and a span `rank N` for each worker. A failure is an event `exception` of the worker's
    span, or of the span `launch` if the worker ran on another node.

    Args:
        tracer: creates the spans.
        parent: the parent context of the span `launch`, if there is one.
    """

    def __init__(self, tracer: Tracer, parent: Any = None) -> None:
        self._tracer = tracer
        self._parent = parent
        self._account = TimeAccount()
        self._launch: Span | None = None
        self._round: Span | None = None
        self._phase: tuple[str, Span] | None = None
        self._workers: dict[int, Span] = {}  # by process id
        self._ended: dict[int, tuple[Span, int]] = {}  # workers that failed, until their failure
        self._last = 0

    def handle(self, event: Event) -> None:
        """Convert the next event."""
        metadata = event.metadata
        now = self._last = max(self._last, int(event.timestamp * 1e9))
        if self._launch is None:
            attributes = {key: metadata.get(key) for key in _LAUNCH_KEYS}
            self._launch = self._begin("launch", None, now, attributes)
        if event.name == "plaunch.launcher.started":
            self._launch.set_attributes(_attributes(metadata))
        elif event.name == "plaunch.rendezvous.begun":
            self._end_round(now)
            self._round = self._begin("round", self._launch, now, {})
        elif event.name == "plaunch.rendezvous.completed" and self._round is not None:
            self._round.update_name(f"round {metadata.get('round')}")
            self._round.set_attributes(_attributes(metadata))
        self._update_phase(event, now)
        if event.name == "plaunch.worker.started":
            name = f"rank {metadata.get('global_rank')}"
            span = self._begin(name, self._round or self._launch, now, metadata)
            self._workers[_pid(metadata)] = span
        elif event.name == "plaunch.worker.exited":
            self._worker_exited(metadata, now)
        elif event.name == "plaunch.failure":
            self._failed(metadata, now)
        elif event.name in _ROUND_EVENTS:
            span = self._round or self._launch
            span.add_event(event.name, _attributes(metadata), timestamp=now)
        elif event.name == "plaunch.launcher.finished":
            self._finish(metadata, now)

    def close(self) -> None:
        """End all open spans, if the launcher ended without its last event."""
        if self._launch is not None:
            _fail(self._launch, "the launcher ended without an event")
            self._end_all(self._last)

    def _update_phase(self, event: Event, now: int) -> None:
        """Begin and end phases."""
        self._account.note(event)
        name = self._account.phase.value
        name = _PHASES.get(name, name)
        if self._round is None:
            return  # before the first round there is only the launch
        if self._phase is not None and self._phase[0] == name:
            return
        self._end_phase(now)
        self._phase = (name, self._begin(name, self._round, now, {}))

    def _worker_exited(self, metadata: Mapping[str, Any], now: int) -> None:
        span = self._workers.pop(_pid(metadata), None)
        if span is None:
            return
        span.set_attributes(_attributes(metadata))
        if metadata.get("stopped") or metadata.get("exit_code") == 0:
            span.end(now)
            return
        _fail(span, _exit(metadata))
        self._ended[_pid(metadata)] = span, now

    def _failed(self, metadata: Mapping[str, Any], now: int) -> None:
        attributes = _attributes(metadata)
        attributes["exception.type"] = str(metadata.get("signal_name") or "plaunch.WorkerFailure")
        message = metadata.get("message") or metadata.get("headline") or _exit(metadata)
        attributes["exception.message"] = str(message)
        attributes["exception.stacktrace"] = str(metadata.get("last_lines") or "")
        if metadata.get("failed_host") == metadata.get("host") and _pid(metadata) in self._ended:
            span, end = self._ended.pop(_pid(metadata))
            # An event cannot be later than the end of its span.
            span.add_event("exception", attributes, timestamp=end)
            span.end(end)
        elif self._launch is not None:
            self._launch.add_event("exception", attributes, timestamp=now)

    def _finish(self, metadata: Mapping[str, Any], now: int) -> None:
        if self._launch is None:
            return
        self._launch.set_attributes(_attributes(metadata))
        if metadata.get("outcome") in ("succeeded", "not_needed"):
            from opentelemetry.trace import StatusCode

            self._launch.set_status(StatusCode.OK)
        else:
            _fail(self._launch, f"{metadata.get('outcome')}: {metadata.get('reason')}")
        self._end_all(now)

    def _end_all(self, now: int) -> None:
        self._end_round(now)
        if self._launch is not None:
            self._launch.end(now)
            self._launch = None

    def _end_round(self, now: int) -> None:
        for span, end in self._ended.values():
            span.end(end)
        self._ended.clear()
        for span in self._workers.values():
            span.end(now)
        self._workers.clear()
        self._end_phase(now)
        if self._round is not None:
            self._round.end(now)
            self._round = None

    def _end_phase(self, now: int) -> None:
        if self._phase is not None:
            self._phase[1].end(now)
            self._phase = None

    def _begin(
        self, name: str, parent: Span | None, now: int, attributes: Mapping[str, Any]
    ) -> Span:
        from opentelemetry.trace import set_span_in_context

        context = self._parent if parent is None else set_span_in_context(parent)
        return self._tracer.start_span(
            name, context=context, start_time=now, attributes=_attributes(attributes)
        )


def trace_id_of(run_id: str) -> int:
    """The id of a run's trace, the same on all nodes without communication."""
    digest = hashlib.sha256(f"plaunch run {run_id}".encode()).digest()
    return int.from_bytes(digest[:16], "big") or 1


def _attributes(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {f"plaunch.{key}": value for key, value in metadata.items() if value is not None}


def _pid(metadata: Mapping[str, Any]) -> int:
    pid = metadata.get("worker_pid")
    return pid if isinstance(pid, int) else -1


def _exit(metadata: Mapping[str, Any]) -> str:
    name = metadata.get("signal_name")
    return f"killed by {name}" if name else f"exit code {metadata.get('exit_code')}"


def _fail(span: Span, description: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, description))
