"""The pages of a launch: wired to its events, its loop and its output."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
from plaunch import LaunchConfig, elastic_launch, hookimpl
from plaunch.agent import HealthCheckServer, health
from plaunch.agent.alive import Alive
from plaunch.errors import UsageError
from plaunch.process import ChildFailedError
from plaunch_logs_default import DefaultLogsSpecs
from plaunch_status import extension as service_module
from plaunch_status.extension import Service
from streams import Stream

from helpers.ports import free_port

VARIABLE = "TORCHELASTIC_HEALTH_CHECK_PORT"
LONG = 30.0  # seconds; nothing here should ever take as long


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LONG) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def service():
    made = Service("job", "trainer", grace=30.0)
    yield made
    made.stop()


@pytest.fixture
def port(service):
    port = free_port()
    service.serve(port, None)
    return port


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


def test_numbers(service, port):
    pytest.importorskip("prometheus_client")
    stream = Stream(service.handle)
    stream.begin()
    service.dropped = lambda: {"jsonl": 2}
    code, text = get(port, "/metrics")
    assert code == 200
    assert 'plaunch_phase{phase="rendezvous"} 1.0' in text
    assert 'plaunch_events_dropped_total{handler="jsonl"} 2.0' in text
    assert "plaunch_events_total 2.0" in text
    assert "python_info" not in text  # of the process at large, which may be a user's own


def test_without_the_extra_only_the_numbers_are_missing(service, port, monkeypatch):
    monkeypatch.setitem(sys.modules, "plaunch_status.prometheus", None)
    monkeypatch.delattr("plaunch_status.prometheus", raising=False)
    code, text = get(port, "/metrics")
    assert code == 501
    assert "pip install 'plaunch[prometheus]'" in text
    assert get(port, "/healthz")[0] == 200
    assert status(port)["run_id"] == "job"


def test_a_loop_that_does_not_turn(service, port):
    now = time.monotonic()
    service.alive._clock = lambda: now
    service.alive.wakes()
    now += 89.0
    assert get(port, "/healthz")[0] == 200
    now += 2.0
    code, text = get(port, "/healthz")
    assert code == 503
    assert "91 s" in text
    told = status(port)
    assert (told["alive"], told["silent_seconds"]) == (False, 91.0)
    service.alive.sleeps(None)
    now += 1e6
    assert get(port, "/healthz")[0] == 200


def test_a_slow_console_is_a_sign_of_life_only_when_no_worker_runs(service):
    class Console:
        waiting_bytes = missing_lines = 0
        last_progress = 0.0

    console, now = Console(), 1000.0
    service.alive._clock = lambda: now
    service.traffic.shows_on([console])
    service.alive.wakes()
    stream = Stream(service.handle)
    stream.begin()
    stream.form(1)
    now += 500.0
    console.last_progress = now
    assert service.alive.overdue() == 500.0
    stream.fail(2)  # from here on no worker runs
    assert service.alive.overdue() == 0
    now += 91.0
    assert service.alive.overdue() == 591.0


class Rendezvous:
    def __init__(self, said):
        self.said = said

    def describe_wait(self):
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


@pytest.mark.parametrize(
    ("said", "shown"), [("2 more nodes", "2 more nodes"), (RuntimeError("changed"), None)]
)
def test_what_is_waited_for(service, port, said, shown):
    service.watch(Rendezvous(said))
    assert status(port)["waiting_for"] is None
    stream = Stream(service.handle)
    stream.begin()
    assert status(port)["waiting_for"] == shown
    stream.form(1)
    assert status(port)["waiting_for"] is None


def test_a_taken_port_is_the_users_mistake_and_leaves_nothing_open():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        config = LaunchConfig(1, 1, 1, metrics_port=port)
        with pytest.raises(UsageError, match=r"--metrics-port .*taken by pid"):
            elastic_launch(config, "/bin/false")()
    assert not [t for t in threading.enumerate() if t.name.startswith("plaunch-status")]


def test_an_address_that_makes_no_sense_is_refused_with_the_other_settings():
    with pytest.raises(UsageError, match="--metrics-port is 'x'"):
        LaunchConfig(1, 1, 1, metrics_port="x")


# --- TORCHELASTIC_HEALTH_CHECK_PORT ---------------------------------------------------------------


def find(metrics_port=None, server=None):
    return health.find_service(metrics_port, server, run_id="job", role="", grace=1.0)


def test_nothing_is_served_unless_asked_for(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert find() is None


def test_the_variable_serves_all_pages(monkeypatch):
    port = free_port()
    monkeypatch.setenv(VARIABLE, str(port))
    with contextlib.closing(_Closing(find())) as found:
        assert get(port, "/healthz")[0] == 200
        assert status(port)["run_id"] == "job"
        # The agent, which looks at the variable itself, must not serve there too.
        found.service.health_check.start()
        assert abs(found.service.health_check.alive_callback() - time.time()) < 5
        found.service.health_check.stop()
        assert get(port, "/healthz")[0] == 200


class _Closing:
    def __init__(self, service):
        self.service = service

    def close(self):
        self.service.stop()


@pytest.mark.parametrize("is_same", [True, False])
def test_the_variable_and_the_option(monkeypatch, is_same):
    port = free_port()
    other = port if is_same else free_port()
    monkeypatch.setenv(VARIABLE, str(port))
    with contextlib.closing(_Closing(find(f"0.0.0.0:{other}"))) as found:
        assert get(port, "/healthz")[0] == get(other, "/healthz")[0] == 200
        assert len(found.service._servers) == (1 if is_same else 2)


def test_a_port_of_the_variable_that_is_taken_never_made_a_launch_fail(monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv(VARIABLE, str(other.getsockname()[1]))
        with contextlib.closing(_Closing(find())):
            pass
        health.find_server(lambda: 7).start()  # nor that of an agent made by hand
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "taken by pid" in caplog.text


@pytest.mark.parametrize("text", ["here", "0", "65536", "-1", ""])
def test_the_variable_has_no_port(monkeypatch, caplog, text):
    monkeypatch.setenv(VARIABLE, text)
    assert find() is None
    assert repr(text) in caplog.text


def test_a_health_check_of_the_callers_own_has_the_variable(monkeypatch):
    monkeypatch.setenv(VARIABLE, str(free_port()))
    assert find(server=HealthCheckServer(lambda: 7, 1, 60)) is None
    monkeypatch.setattr(health, "create_healthcheck_server", HealthCheckServer)
    assert find() is None


@pytest.mark.parametrize(("age", "code"), [(0, 200), (59, 200), (70, 503)])
def test_an_agent_made_by_hand_serves_its_health_alone(monkeypatch, age, code):
    port = free_port()
    monkeypatch.setenv(VARIABLE, str(port))
    server = health.find_server(lambda: int(time.time()) - age)
    server.start()
    try:
        assert get(port, "/healthz")[0] == code
        assert get(port, "/status")[0] == 404
    finally:
        server.stop()


# --- a launch -------------------------------------------------------------------------------------


class Watcher:
    """Looks at the pages at every moment."""

    def __init__(self, port):
        self.port = port
        self.seen = []

    def look(self, moment):
        code, _ = get(self.port, "/healthz")
        told = status(self.port)
        self.seen.append((moment, code, told["phase"], told["state"]))

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


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
@pytest.mark.filterwarnings("error")  # among others, of a fork beside another thread
def test_from_before_the_first_moment_to_after_the_last(start_method):
    watcher = Watcher(free_port())
    config = LaunchConfig(
        1, 1, 2, metrics_port=watcher.port, max_restarts=0, start_method=start_method
    )
    assert elastic_launch(config, time.time, plugins=[watcher])().keys() == {0, 1}
    assert watcher.seen == [
        ("before_rendezvous", 200, "starting", "INIT"),
        ("after_rendezvous", 200, "rendezvous", "INIT"),
        ("workers_started", 200, "starting", "INIT"),
        ("agent_finished", 200, "lingering", "SUCCEEDED"),
    ]
    with pytest.raises(urllib.error.URLError):
        get(watcher.port, "/healthz")


def test_a_failure_is_seen_at_the_end():
    watcher = Watcher(free_port())
    config = LaunchConfig(1, 1, 1, metrics_port=watcher.port, max_restarts=1)
    with pytest.raises(ChildFailedError):
        elastic_launch(config, "/bin/false", plugins=[watcher])()
    assert [phase for _, _, phase, _ in watcher.seen][-1] == "stopping"
    assert len(watcher.seen) == 7  # two rounds


def test_a_loop_that_hangs_is_told_and_one_that_goes_on_is_forgiven(monkeypatch):
    monkeypatch.setattr(service_module, "TURN_BOUND", 1.0)
    port, codes = free_port(), []

    class Hangs(DefaultLogsSpecs):  # given in code, so that nothing bounds it
        def reify(self, envs):
            codes.append(get(port, "/healthz")[0])
            deadline = time.monotonic() + LONG
            while get(port, "/healthz")[0] == 200 and time.monotonic() < deadline:
                time.sleep(0.05)
            codes.append(get(port, "/healthz")[0])
            return super().reify(envs)

    class Looks:
        @hookimpl
        def plaunch_agent_finished(self):
            codes.append(get(port, "/healthz")[0])

    config = LaunchConfig(1, 1, 1, metrics_port=port, shutdown_timeout=0, logs_specs=Hangs())
    elastic_launch(config, "/bin/sleep", plugins=[Looks()])("1")
    assert codes == [200, 503, 200]


def test_the_output_that_passes_is_counted(capfd, caplog):
    pytest.importorskip("prometheus_client")
    port, seen = free_port(), []

    class Looks:
        @hookimpl
        def plaunch_agent_finished(self):
            seen.append(get(port, "/metrics")[1])

    config = LaunchConfig(1, 1, 2, metrics_port=port, max_restarts=0)
    with caplog.at_level(logging.INFO, "plaunch"):
        elastic_launch(config, "/bin/sh", plugins=[Looks()])("-c", "printf 12345 >&2")
    assert re.search(r"^plaunch_tee_bytes_total 10\.0$", seen[0], re.MULTILINE)
    assert re.search(r"^plaunch_tee_lag_bytes 0\.0$", seen[0], re.MULTILINE)
    assert f"http://127.0.0.1:{port}/status" in caplog.text


class Told(Alive):
    """Keeps what the loop says of itself."""

    calls: list

    def sleeps(self, seconds):
        self.calls.append("sleeps" if seconds is None or 0 <= seconds <= 60 else seconds)
        super().sleeps(seconds)

    def wakes(self):
        self.calls.append("wakes")
        super().wakes()

    def ends(self):
        self.calls.append("ends")
        super().ends()


@pytest.mark.parametrize("program", ["/bin/true", "/bin/false"])
def test_the_loop_says_when_it_sleeps_and_when_it_wakes(monkeypatch, program):
    monkeypatch.setattr(Told, "calls", [], raising=False)
    monkeypatch.setattr(service_module, "Alive", Told)
    config = LaunchConfig(1, 1, 1, metrics_port=0, max_restarts=1)
    with contextlib.suppress(ChildFailedError):
        elastic_launch(config, program)()
    *turns, last = Told.calls
    assert last == "ends"
    assert len(turns) >= 4  # at least one turn for the rendezvous, and one for the worker
    assert turns == ["sleeps", "wakes"] * (len(turns) // 2)
