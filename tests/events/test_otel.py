"""Traces: spans from events, and the process that exports them."""

from __future__ import annotations

import contextlib
import http.server
import os
import pathlib
import sys
import threading
import time

import pytest
from plaunch.errors import PluginLoadError, UsageError
from plaunch.events import Event
from plaunch.plugin import PluginContext
from plaunch_events import SCHEMA, otel, otel_export, otel_process
from plaunch_events.otel_export import Spans, trace_id_of

from helpers.programs import run_python

pytest.importorskip("opentelemetry.sdk.trace")

DEADLINE = 30.0  # seconds
EPOCH = 1_700_000_000.0


def events_of(*recorded, run_id="exp7"):
    """Events from `(name, metadata)`, one second apart."""
    common = {"run_id": run_id, "host": "alpha", "role": "r", "agent_pid": 7, "attempt": 0}
    return [
        Event(
            f"plaunch.{name}",
            SCHEMA[f"plaunch.{name}"].source,
            EPOCH + number,
            {**common, **metadata},
            100.0 + number,
        )
        for number, (name, metadata) in enumerate(recorded)
    ]


def worker(rank, **more):
    return {"global_rank": rank, "local_rank": rank, "worker_pid": 70 + rank, **more}


def failure(rank, host="alpha", **more):
    return worker(rank, failed_host=host, exit_code=3, message="ValueError: no", **more)


LAUNCH = [
    ("launcher.started", {"entry_point": "train.py"}),
    ("rendezvous.begun", {}),
    ("rendezvous.completed", {"round": 0, "world_size": 2}),
    ("worker.started", worker(0)),
    ("worker.started", worker(1)),
    ("workers.started", {}),
]
SUCCESS = [
    *LAUNCH,
    ("worker.exited", worker(0, exit_code=0, stopped=False)),
    ("worker.exited", worker(1, exit_code=0, stopped=False)),
    ("state.changed", {"old": "HEALTHY", "new": "SUCCEEDED"}),
    ("launcher.finished", {"outcome": "succeeded", "exit_code": 0, "reason": ""}),
]
RESTART = [
    *LAUNCH,
    ("worker.exited", worker(1, exit_code=3, stopped=False)),  # 6
    ("stop.step", {"step": "signalled"}),
    ("worker.exited", worker(0, exit_code=-15, signal_name="SIGTERM", stopped=True)),
    ("failure", failure(1, last_lines="a\nb", is_first=True)),
    ("rendezvous.begun", {}),  # 10
    ("rendezvous.completed", {"round": 1}),
    ("workers.started", {}),
    ("failure", failure(5, host="beta", is_first=True)),
    ("launcher.finished", {"outcome": "failed", "exit_code": 3, "reason": "rank 5 failed"}),
]


def spans_of(recorded, trace_id="", environ=None, close=False):
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    made = events_of(*recorded)
    exporter = InMemorySpanExporter()
    provider, parent = otel_export.create_provider(made[0], trace_id, environ or {})
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = Spans(provider.get_tracer("plaunch"), parent)
    for event in made:
        spans.handle(event)
    if close:
        spans.close()
    return exporter.get_finished_spans()


def seconds(nanoseconds):
    return nanoseconds / 1e9 - EPOCH


def table(spans):
    """The name, parent's name, begin and end of each span, by begin."""
    names = {span.context.span_id: span.name for span in spans}
    rows = [
        (
            span.name,
            names.get(span.parent.span_id) if span.parent else None,
            seconds(span.start_time),
            seconds(span.end_time),
        )
        for span in spans
    ]
    return sorted(rows, key=lambda row: (row[2], -row[3], row[0]))


def named(spans, name):
    (span,) = (span for span in spans if span.name == name)
    return span


def test_a_good_run():
    spans = spans_of(SUCCESS)
    assert table(spans) == [
        ("launch", None, 0, 9),
        ("round 0", "launch", 1, 9),
        ("rendezvous", "round 0", 1, 2),
        ("starting", "round 0", 2, 5),
        ("rank 0", "round 0", 3, 6),
        ("rank 1", "round 0", 4, 7),
        ("training", "round 0", 5, 8),
        ("waiting for nodes", "round 0", 8, 9),
    ]
    assert {span.status.status_code.name for span in spans if span.name == "launch"} == {"OK"}
    assert named(spans, "launch").attributes["plaunch.entry_point"] == "train.py"
    assert len({span.context.trace_id for span in spans}) == 1


def test_a_failure_is_an_event_of_its_workers_span_and_another_nodes_of_the_launchs():
    spans = spans_of(RESTART)
    assert [
        row for row in table(spans) if row[0] in ("stopping", "round 0", "round 1", "rank 1")
    ] == [
        ("round 0", "launch", 1, 10),
        ("rank 1", "round 0", 4, 6),
        ("stopping", "round 0", 6, 10),
        ("round 1", "launch", 10, 14),
        ("stopping", "round 1", 13, 14),
    ]
    failed = named(spans, "rank 1")
    assert (failed.status.status_code.name, failed.status.description) == ("ERROR", "exit code 3")
    (event,) = failed.events
    assert event.name == "exception"
    assert event.attributes["exception.message"] == "ValueError: no"
    assert event.attributes["exception.stacktrace"] == "a\nb"
    launch = named(spans, "launch")
    (event,) = launch.events
    assert event.attributes["plaunch.failed_host"] == "beta"
    assert launch.status.description == "failed: rank 5 failed"
    assert named(spans, "rank 0").status.status_code.name == "UNSET"  # it was stopped


def test_other_events_are_events_of_the_rounds_span():
    request = ("request.received", {"kind": "restart", "who": "x", "reason": "y"})
    spans = spans_of([*RESTART[:10], request, *RESTART[10:]])
    recorded = [event.name for event in named(spans, "round 0").events]
    assert recorded == ["plaunch.stop.step", "plaunch.request.received"]


@pytest.mark.parametrize("length", range(1, len(RESTART)))
def test_a_launcher_that_was_killed_leaves_no_span_open(length):
    """Every span ends, and is within its parent."""
    spans = spans_of(RESTART[:length], close=True)
    by_id = {span.context.span_id: span for span in spans}
    assert named(spans, "launch").status.description == "the launcher ended without an event"
    assert sum(span.name.startswith("rank") for span in spans) == sum(
        name == "worker.started" for name, _ in RESTART[:length]
    )
    for span in spans:
        if span.parent:
            parent = by_id[span.parent.span_id]
            assert parent.start_time <= span.start_time <= span.end_time <= parent.end_time


def test_all_nodes_of_a_run_have_one_trace_and_other_runs_another():
    first, second = (spans_of(SUCCESS)[0].context for _ in range(2))
    assert first.trace_id == second.trace_id == trace_id_of("exp7")
    assert first.span_id != second.span_id
    assert trace_id_of("exp8") != trace_id_of("exp7")


def test_the_trace_id_as_an_option():
    assert spans_of(SUCCESS, trace_id="ab" * 16)[0].context.trace_id == int("ab" * 16, 16)


def test_the_callers_trace():
    environ = {"TRACEPARENT": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    launch = named(spans_of(SUCCESS, environ=environ), "launch")
    assert launch.context.trace_id == int("ab" * 16, 16)
    assert launch.parent.span_id == int("cd" * 8, 16)
    broken = spans_of(SUCCESS, environ={"TRACEPARENT": "nonsense"})
    assert named(broken, "launch").context.trace_id == trace_id_of("exp7")


def test_opentelemetrys_variables_take_precedence(monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=theirs,team=blue")
    recorded = spans_of(SUCCESS)[0].resource.attributes
    assert (recorded["service.name"], recorded["host.name"], recorded["team"]) == (
        "mine",
        "theirs",
        "blue",
    )
    assert recorded["plaunch.run_id"] == "exp7"


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"OTEL_TRACES_EXPORTER": "console,none"}, ["ConsoleSpanExporter"]),
        ({}, ["OTLPSpanExporter"]),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, ["OTLPSpanExporter"]),
    ],
)
def test_exporters(environ, names):
    made = list(otel_export.create_exporters(environ))
    assert [type(exporter).__name__ for exporter in made] == names
    for exporter in made:
        exporter.shutdown()


def test_an_exporter_that_is_not_installed():
    with pytest.raises(LookupError, match="no exporter 'zipkon'"):
        list(otel_export.create_exporters({"OTEL_TRACES_EXPORTER": "zipkon"}))


# --- the process ----------------------------------------------------------------------------------


def context(**options):
    return PluginContext(run_id="exp7", role="r", host="alpha", options=options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wait": "long"}, "otel.wait .* is 'long'"),
        ({"wait": "60"}, "from 0 up to 1.5"),
        ({"trace_id": "12"}, "32 hexadecimal digits"),
        ({"trace_id": "0" * 32}, "not all of them 0"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(UsageError, match=message):
        otel.OtelEventHandler(context(**options))


def test_without_the_sdk(monkeypatch):
    monkeypatch.delitem(sys.modules, "opentelemetry.sdk", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(PluginLoadError, match=r"pip install 'plaunch\[otel\]'"):
        otel.OtelEventHandler(context())


def test_switched_off_by_its_own_variable(monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not otel.OtelEventHandler(context()).wants_events


def handled(recorded, *, is_idle=False, max_wait=otel.MAX_WAIT, **options):
    """A handler that got these events.

    Its process has the normal priority: on a busy machine an idle process could wait for minutes.
    """
    handler = otel.OtelEventHandler(context(**options), max_wait=max_wait, is_idle=is_idle)
    for event in events_of(*recorded):
        handler.handle(event)
    return handler


@contextlib.contextmanager
def collector(delay=0.0):
    """A server for traces; its decoded requests, and its URL."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    requests, arrived = [], threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
            arrived.set()
            time.sleep(delay)
            with contextlib.suppress(OSError):
                self.send_response(200)
                self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield requests, arrived, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def sent(requests):
    return [
        span.name
        for _, request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def closed(handler):
    """Close the handler and wait for its process; return the exit code."""
    handler.close()
    handler.process.returncode = None  # it is left to itself, but this test is still its parent
    return handler.process.wait(DEADLINE)


def test_spans_reach_a_server_by_otlp(monkeypatch):
    with collector() as (requests, _, url):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        assert closed(handled(SUCCESS, wait="0")) == 0
    assert {path for path, _ in requests} == {"/v1/traces"}
    assert sorted(sent(requests)) == sorted(row[0] for row in table(spans_of(SUCCESS)))


def test_a_server_that_hangs_blocks_neither_process(monkeypatch):
    """Neither the launcher, nor permanently the process that exports."""
    with collector(delay=2.0) as (_, arrived, url):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        closed(handled(SUCCESS, max_wait=0.05))
        assert arrived.wait(DEADLINE)


def test_the_process_starts_with_the_workers(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    handler = handled(LAUNCH[:-1], wait="0")
    assert handler.process is None
    handler.handle(events_of(*LAUNCH)[-1])
    assert handler.process is not None
    closed(handler)


def test_the_process_runs_at_idle_priority(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    process = handled(LAUNCH, wait="0", is_idle=True).process
    pid = process.pid
    assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    share = pathlib.Path(f"/proc/{pid}/autogroup")  # of its session
    # Others may change it only ten times a second, all of them together.
    if share.exists() and os.geteuid() == 0:
        assert share.read_text().split()[-1] == "19"
    process.kill()
    process.wait(DEADLINE)
    process.stdin.close()


def test_the_process_waits_before_it_imports_the_sdk():
    reader, writer = os.pipe()
    waiting = threading.Thread(
        target=otel_process.wait_for_launch, args=(reader, os.getppid(), DEADLINE)
    )
    waiting.start()
    os.write(writer, b"an event")
    waiting.join(0.2)
    assert waiting.is_alive()
    os.close(writer)
    waiting.join(DEADLINE / 2)
    assert not waiting.is_alive()
    os.close(reader)


def test_an_export_that_fails_is_an_error(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkon")
    handler = handled(SUCCESS[:1], wait=str(DEADLINE), max_wait=DEADLINE)
    with pytest.raises(RuntimeError, match="exit code 1"):
        handler.close()


def test_no_events_no_spans():
    assert otel_export.main("", []) == 0


def test_importing_the_handler_does_not_import_the_sdk():
    code = "import sys, plaunch_events.otel; sys.exit('opentelemetry' in sys.modules)"
    run_python("-c", code, check=True)
