"""The process that exports traces: it reads events and exports spans.

It exits after its launcher.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from plaunch.events import Event

from plaunch_events.spans import Spans, trace_id_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

LAST_WAIT = 10.0  # seconds to export the remaining spans after the last event
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


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
    threading.Timer(LAST_WAIT, _give_up).start()
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


def _give_up() -> None:
    # Threads of an exporter that hangs would keep the process alive.
    os._exit(1)
