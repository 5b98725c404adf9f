"""The pages of a launch."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from plaunch import LaunchConfig, elastic_launch, hookimpl
from plaunch.agent import Snapshot
from plaunch.agent.poller import LoopWatchdog
from plaunch.errors import UsageError
from plaunch.launch import session
from plaunch.plugin import PluginContext
from plaunch.process import ChildFailedError
from plaunch_logs_default import DefaultLogsSpecs
from plaunch_status.plugin import StatusExtension
from plaunch_torchrun import health
from plaunch_torchrun.health import HealthCheckServer

from helpers.event_streams import Stream
from helpers.ports import free_port
from helpers.waiting import wait_until

VARIABLE = "TORCHELASTIC_HEALTH_CHECK_PORT"
LONG = 30.0  # seconds; nothing here should ever take as long


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LONG) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class FakeControl:
    """A control with a state that a test sets."""

    def __init__(self):
        self.now = Snapshot("INIT", -1, 0, (), {})

    def snapshot(self):
        return self.now

    def held(self):
        return {}

    def be(self, **changes):
        self.now = replace(self.now, **changes)


@pytest.fixture
def control():
    return FakeControl()


@pytest.fixture
def serve(control):
    """Serve the pages of a launch with these options; returns the extension."""
    made = []

    def serve(**options):
        context = PluginContext("job", "trainer", "host", options=options)
        made.append(StatusExtension(context))
        made[-1].start(control)
        return made[-1]

    yield serve
    for one in made:
        one.stop(None)


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def service(serve, port):
    return serve(metrics_port=port)


def status(port):
    code, text = get(port, "/status")
    assert code == 200
    return json.loads(text)


def test_the_pages(service, port):
    Stream(service.handle).begin()
    assert get(port, "/healthz") == (200, "ok\n")
    assert status(port)["phase"] == "rendezvous"
    assert "/healthz" in get(port, "/")[1]
    assert get(port, "/other")[0] == 404


def test_the_metrics_page(service, port, control):
    pytest.importorskip("prometheus_client")
    stream = Stream(service.handle)
    stream.begin()
    control.be(dropped={"jsonl": 2})
    code, text = get(port, "/metrics")
    assert code == 200
    assert 'plaunch_phase{phase="rendezvous"} 1.0' in text
    assert 'plaunch_events_dropped_total{handler="jsonl"} 2.0' in text
    assert "plaunch_events_total 2.0" in text
    assert "python_info" not in text  # of the process at large, which may be a user's own


def test_without_the_extra_only_the_metrics_are_missing(service, port, monkeypatch):
    monkeypatch.setitem(sys.modules, "plaunch_status.prometheus", None)
    monkeypatch.delattr("plaunch_status.prometheus", raising=False)
    code, text = get(port, "/metrics")
    assert code == 501
    assert "pip install 'plaunch[prometheus]'" in text
    assert get(port, "/healthz")[0] == 200
    assert status(port)["run_id"] == "job"


def test_a_loop_that_is_overdue(service, port, control):
    assert get(port, "/healthz")[0] == 200
    control.be(overdue=91.0, patience=90.0)
    code, text = get(port, "/healthz")
    assert code == 503
    assert "91 s" in text
    data = status(port)
    assert (data["alive"], data["silent_seconds"]) == (False, 91.0)


def test_the_reason_for_waiting(service, port, control):
    stream = Stream(service.handle)
    stream.begin()
    assert status(port)["waiting_for"] is None
    control.be(waits_for="2 more nodes")
    assert status(port)["waiting_for"] == "2 more nodes"
    stream.form(0)
    assert status(port)["waiting_for"] is None


def test_a_taken_port_is_a_usage_error_and_leaves_nothing_open():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        config = LaunchConfig(1, 1, 1, options={"metrics_port": port})
        with pytest.raises(UsageError, match=r"--metrics-port .*taken by pid"):
            elastic_launch(config, "/bin/false")()
    assert not [t for t in threading.enumerate() if t.name.startswith("plaunch-status")]


def test_an_invalid_address_is_refused():
    config = LaunchConfig(1, 1, 1, options={"metrics_port": "x"})
    with pytest.raises(UsageError, match="--metrics-port is 'x'"):
        elastic_launch(config, "/bin/false")()


# --- TORCHELASTIC_HEALTH_CHECK_PORT ---------------------------------------------------------------


@pytest.mark.parametrize("is_same", [True, False])
def test_the_variable_and_the_option(serve, is_same):
    port = free_port()
    other = port if is_same else free_port()
    found = serve(metrics_port=f"0.0.0.0:{other}", health_port=str(port))
    assert get(port, "/healthz")[0] == get(other, "/healthz")[0] == 200
    assert len(found.urls) == (1 if is_same else 2)


def test_a_taken_port_of_the_variable_is_only_a_warning(serve, caplog):
    with socket.create_server(("127.0.0.1", 0)) as other:
        serve(health_port=str(other.getsockname()[1]))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "taken by pid" in caplog.text


@pytest.mark.parametrize("text", ["here", "0", "65536", "-1", ""])
def test_the_variable_is_not_a_port(serve, caplog, text):
    assert serve(health_port=text).urls == []
    assert repr(text) in caplog.text
    assert "--health-port" in caplog.text


class PageProbe:
    """Requests pages at every hook; None if no server answers."""

    def __init__(self, *paths):
        self.port, self.paths, self.seen = free_port(), paths, []

    def look(self, moment):
        pages = None
        with contextlib.suppress(urllib.error.URLError):
            pages = [get(self.port, path) for path in self.paths]
        self.seen.append((moment, pages))

    @hookimpl
    def plaunch_before_rendezvous(self):
        self.look("before_rendezvous")

    @hookimpl
    def plaunch_after_rendezvous(self):
        self.look("after_rendezvous")

    @hookimpl
    def plaunch_workers_started(self):
        self.look("workers_started")

    @hookimpl
    def plaunch_agent_finished(self):
        self.look("agent_finished")


class Silent(HealthCheckServer):
    """A server of a site, which serves elsewhere."""

    def start(self):
        pass


@pytest.mark.parametrize("whose", ["ours", "the caller's", "the site's"])
def test_the_variable_serves_the_pages_of_a_launch(monkeypatch, whose):
    probe = PageProbe("/healthz")
    monkeypatch.setenv(VARIABLE, str(probe.port))
    if whose == "the site's":
        monkeypatch.setattr(health, "create_healthcheck_server", Silent)
    server = Silent(lambda: 7, 1, 60) if whose == "the caller's" else None
    elastic_launch(LaunchConfig(1, 1, 1), "/bin/true", server, plugins=[probe])()
    pages = [(200, "ok\n")] if whose == "ours" else None
    assert [seen for _, seen in probe.seen] == [pages] * 4


# --- a launch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
@pytest.mark.filterwarnings("error")  # among others, of a fork beside another thread
def test_pages_are_served_during_the_whole_launch(start_method):
    probe = PageProbe("/healthz", "/status")
    config = LaunchConfig(
        1, 1, 2, options={"metrics_port": probe.port}, max_restarts=0, start_method=start_method
    )
    assert elastic_launch(config, time.time, plugins=[probe])().keys() == {0, 1}
    # What has just happened may not be on the page yet.
    assert [(moment, [code for code, _ in pages]) for moment, pages in probe.seen] == [
        (moment, [200, 200])
        for moment in ("before_rendezvous", "after_rendezvous", "workers_started", "agent_finished")
    ]
    with pytest.raises(urllib.error.URLError):
        get(probe.port, "/healthz")


def test_a_failure_is_seen_at_the_end():
    probe = PageProbe("/healthz")
    config = LaunchConfig(1, 1, 1, options={"metrics_port": probe.port}, max_restarts=1)
    with pytest.raises(ChildFailedError):
        elastic_launch(config, "/bin/false", plugins=[probe])()
    assert [pages for _, pages in probe.seen] == [[(200, "ok\n")]] * 7  # two rounds


def test_a_loop_that_hangs_is_reported_until_it_continues(monkeypatch):
    monkeypatch.setattr(session, "TURN_BOUND", 1.0)
    probe, codes = PageProbe("/healthz"), []

    def hang(*_):  # calls of plugins are limited, but not a signal handler of the program
        codes.append(get(probe.port, "/healthz")[0])
        wait_until(lambda: get(probe.port, "/healthz")[0] != 200, "it is reported")
        codes.append(get(probe.port, "/healthz")[0])

    class Starts(DefaultLogsSpecs):
        def reify(self, envs):
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            return super().reify(envs)

    former = signal.signal(signal.SIGALRM, hang)
    options = {"metrics_port": probe.port}
    config = LaunchConfig(1, 1, 1, options=options, shutdown_timeout=0, logs_specs=Starts())
    try:
        elastic_launch(config, "/bin/sleep", plugins=[probe])("2")
    finally:
        signal.signal(signal.SIGALRM, former)
    assert codes == [200, 503]
    assert probe.seen[-1] == ("agent_finished", [(200, "ok\n")])


def test_the_output_that_passes_is_counted(capfd, caplog):
    pytest.importorskip("prometheus_client")
    probe = PageProbe("/metrics")
    config = LaunchConfig(1, 1, 2, options={"metrics_port": probe.port}, max_restarts=0)
    with caplog.at_level(logging.INFO, "plaunch"):
        elastic_launch(config, "/bin/sh", plugins=[probe])("-c", "printf 12345 >&2")
    _, [(_, numbers)] = probe.seen[-1]
    assert {"plaunch_tee_bytes_total 10.0", "plaunch_tee_lag_bytes 0.0"} < {*numbers.splitlines()}
    assert f"http://127.0.0.1:{probe.port}/status" in caplog.text


class LoopRecorder(LoopWatchdog):
    """Records the calls of the loop."""

    calls: list

    def before_poll(self, seconds):
        self.calls.append("sleeps" if seconds is None or 0 <= seconds <= 60 else seconds)
        super().before_poll(seconds)

    def after_poll(self):
        self.calls.append("wakes")
        super().after_poll()

    def stop(self):
        self.calls.append("ends")
        super().stop()


@pytest.mark.parametrize("program", ["/bin/true", "/bin/false"])
def test_the_loop_reports_when_it_sleeps_and_when_it_wakes(monkeypatch, program):
    monkeypatch.setattr(LoopRecorder, "calls", [], raising=False)
    monkeypatch.setattr(session, "LoopWatchdog", LoopRecorder)
    config = LaunchConfig(1, 1, 1, options={"metrics_port": 0}, max_restarts=1)
    with contextlib.suppress(ChildFailedError):
        elastic_launch(config, program)()
    *turns, last = LoopRecorder.calls
    assert last == "ends"
    assert len(turns) >= 4  # at least one turn for the rendezvous, and one for the worker
    in_turn = [turn for turn, before in zip(turns, [None, *turns], strict=False) if turn != before]
    assert in_turn == ["sleeps", "wakes"] * (len(in_turn) // 2)
