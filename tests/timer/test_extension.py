"""The timers of an agent's workers, and the health of the agent itself."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
from plaunch import LaunchConfig, elastic_launch
from plaunch.agent import HealthCheckServer, health
from plaunch.errors import UsageError
from plaunch.process import ChildFailedError, ProcessFailure
from plaunch_timer import FileTimerClient
from plaunch_timer.extension import Watchdog

SCRIPT = """\
import os, signal, sys, time
from plaunch_timer import FileTimerClient, configure, expires
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(sys.argv[1], "a") as file:
    file.write(f"{attempt} {os.environ['TORCHELASTIC_TIMER_FILE']}\\n")
configure(FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"], signal.SIGTERM))
with expires(0.1 if attempt == "0" or "again" in sys.argv else 60, "step"):
    if attempt == "0" or "again" in sys.argv:
        time.sleep(60)
"""


@pytest.fixture
def enabled(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    monkeypatch.delenv("TORCHELASTIC_TIMER_FILE", raising=False)


def launch(tmp_path, *more):
    config = LaunchConfig(1, 1, 1, max_restarts=1, run_id="job")
    words = ["-c", SCRIPT, str(tmp_path / "said"), *more]
    return elastic_launch(config, sys.executable)(*words)


def test_a_worker_whose_time_is_over_is_restarted(tmp_path, enabled):
    assert launch(tmp_path) == {0: None}
    attempts = [line.split() for line in (tmp_path / "said").read_text().splitlines()]
    assert [attempt for attempt, _ in attempts] == ["0", "1"]
    (path,) = {path for _, path in attempts}
    assert "watchdog_timer_" in path
    assert not os.path.exists(path)


def test_the_report_says_why(tmp_path, enabled, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(tmp_path / "pipe"))
    with pytest.raises(ChildFailedError) as raised:
        launch(tmp_path, "again")
    failure = raised.value.failures[0]
    assert failure.exitcode == -signal.SIGTERM
    assert failure.message == (
        f"Signal 15 (SIGTERM) received by PID {failure.pid}: its timer 'step' had expired, so that "
        "plaunch sent it SIGTERM"
    )
    assert "its timer 'step' had expired" in str(raised.value)
    assert not (tmp_path / "pipe").exists()


def test_timers_that_nobody_asks_for(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_ENABLE_FILE_TIMER", raising=False)
    monkeypatch.delenv("TORCHELASTIC_TIMER_FILE", raising=False)
    watchdog = Watchdog()
    assert watchdog.environment("job") == {}
    assert abs(watchdog.alive_time() - time.time()) < 60
    watchdog.stop()


def test_somebody_elses_server(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHELASTIC_ENABLE_FILE_TIMER", raising=False)
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(tmp_path / "pipe"))
    assert Watchdog().environment("job") == {"TORCHELASTIC_TIMER_FILE": str(tmp_path / "pipe")}
    assert not (tmp_path / "pipe").exists()


def test_a_pipe_that_cannot_be_made(monkeypatch, enabled, tmp_path):
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(tmp_path / "none" / "pipe"))
    with pytest.raises(UsageError, match="TORCHELASTIC_TIMER_FILE"):
        Watchdog().environment("job")


def test_failures_for_other_reasons_stay_as_they_are(enabled):
    watchdog = Watchdog()
    path = watchdog.environment("job")["TORCHELASTIC_TIMER_FILE"]
    try:
        FileTimerClient(path).acquire("mine", time.time() + 600)
        failure = ProcessFailure(0, 7, 3, "")
        message = failure.message
        watchdog.explain({0: failure})
        assert failure.message == message
    finally:
        watchdog.stop()
        watchdog.stop()
    assert not os.path.exists(path)


class Server(HealthCheckServer):
    """Keeps what it is told."""

    said: list

    def start(self):
        self.said.append(("start", self._port, self.alive_callback()))

    def stop(self):
        self.said.append(("stop", self._port, self.alive_callback()))


def test_a_health_check_from_before_the_start_to_the_end(monkeypatch, tmp_path, enabled):
    said = []
    Server.said = said
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", "1234")
    monkeypatch.setattr(health, "create_healthcheck_server", Server)
    before = int(time.time())
    launch(tmp_path)
    assert [(what, port) for what, port, _ in said] == [("start", 1234), ("stop", 1234)]
    assert all(before <= when <= time.time() for _, _, when in said)


def test_a_health_check_ends_with_a_failure_too(tmp_path):
    Server.said = said = []
    config = LaunchConfig(1, 1, 1, max_restarts=0)
    with pytest.raises(ChildFailedError):
        elastic_launch(config, "/bin/false", Server(lambda: 7, 1, 60))()
    assert said == [("start", 1, 7), ("stop", 1, 7)]
