"""The timers of an agent's workers, and health check servers."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import time

import pytest
from plaunch import LaunchConfig, elastic_launch
from plaunch.agent import Snapshot, WorkerState
from plaunch.errors import UsageError
from plaunch.plugin import PluginContext
from plaunch.process import ChildFailedError
from plaunch_torchrun import health
from plaunch_torchrun.elastic.timer import FileTimerClient, FileTimerRequest
from plaunch_torchrun.health import HealthCheckServer
from plaunch_torchrun.plugin import TimerExtension, Timers

from helpers.programs import running_python

SCRIPT = """\
import os, signal, sys, time
from plaunch_torchrun.elastic.timer import FileTimerClient, configure, expires
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(sys.argv[1], "a") as file:
    file.write(f"{attempt} {os.environ['TORCHELASTIC_TIMER_FILE']}\\n")
configure(FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"], signal.SIGTERM))
with expires(1 if attempt == "0" or "again" in sys.argv else 60, "step"):
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


def test_a_worker_whose_timer_expires_is_restarted(tmp_path, enabled):
    assert launch(tmp_path) == {0: None}
    attempts = [line.split() for line in (tmp_path / "said").read_text().splitlines()]
    assert [attempt for attempt, _ in attempts] == ["0", "1"]
    (path,) = {path for _, path in attempts}
    assert "watchdog_timer_" in path
    assert not os.path.exists(path)


def test_the_report_has_the_reason(tmp_path, enabled, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(tmp_path / "pipe"))
    with pytest.raises(ChildFailedError) as raised:
        launch(tmp_path, "again")
    failure = raised.value.failures[0]
    assert failure.exitcode == -signal.SIGTERM
    assert failure.message == (
        f"Signal 15 (SIGTERM) received by PID {failure.pid}: its timer 'step' had expired, so "
        "plaunch sent it SIGTERM"
    )
    assert "its timer 'step' had expired" in str(raised.value)
    assert not (tmp_path / "pipe").exists()


def plugin(**options):
    """The plugin, and its extension with these options."""
    timers = Timers()
    context = PluginContext("job", "role", "host", options=options)
    return timers, timers.plaunch_extensions(context)


@pytest.mark.parametrize("value", [None, "0"])
def test_timers_are_off_by_default(value):
    timers, extensions = plugin(file_timer=value)
    assert extensions == []
    assert timers.plaunch_worker_env() == {}


def test_a_server_of_another_program(monkeypatch, tmp_path):
    """Its pipe is in the environment that workers inherit."""
    monkeypatch.delenv("TORCHELASTIC_ENABLE_FILE_TIMER", raising=False)
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(tmp_path / "pipe"))
    code = "import os; assert os.environ['TORCHELASTIC_TIMER_FILE'].endswith('pipe')"
    assert elastic_launch(LaunchConfig(1, 1, 1, max_restarts=0), sys.executable)("-c", code)
    assert not (tmp_path / "pipe").exists()


def test_a_pipe_that_cannot_be_created(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(tmp_path / "none" / "pipe"))
    _, (extension,) = plugin(file_timer="1")
    with pytest.raises(UsageError, match="TORCHELASTIC_TIMER_FILE"):
        extension.start(None)
    extension.stop(None)


def test_a_child_process_of_a_worker_is_killed_too(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(tmp_path / "pipe"))
    _, (extension,) = plugin(file_timer="1")

    class Control:
        def snapshot(self):
            return Snapshot("HEALTHY", 0, 0, (0,), {0: os.getpid()})

    extension.start(Control())
    try:
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
            FileTimerClient(str(tmp_path / "pipe"))._send(
                FileTimerRequest(child.pid, "step", time.time() - 1, signal.SIGKILL)
            )
            assert child.wait(60) == -signal.SIGKILL
    finally:
        extension.stop(None)


class StartingControl:
    """An agent that starts its workers, and knows them after some snapshots."""

    def __init__(self, snapshots):
        self.snapshots = snapshots
        self.signals = queue.Queue()

    def snapshot(self):
        return next(self.snapshots)

    def signal_workers(self, signum, ranks, reason):
        self.signals.put((signum, ranks, reason))


def expire(path, pid):
    """Request a timer for a process that has expired."""
    request = FileTimerRequest(pid, "step", time.time() - 1, signal.SIGKILL)
    FileTimerClient(str(path))._send(request)


@pytest.mark.parametrize("state", ["INIT", "FAILED", "STOPPED"])
def test_of_a_worker_that_the_agent_does_not_know_yet_the_reason_is_known(tmp_path, state):
    path, extension = tmp_path / "pipe", TimerExtension(str(tmp_path / "pipe"), "job")
    with running_python("-c", "import time; time.sleep(600)") as worker:
        starting = Snapshot(WorkerState[state], 0, 0, (0, 1), {})
        started = Snapshot(WorkerState.HEALTHY, 0, 0, (0, 1), {0: 1, 1: worker.pid})
        control = StartingControl(itertools.chain([starting] * 3, itertools.repeat(started)))
        extension.start(control)
        try:
            expire(path, worker.pid)
            signum, ranks, reason = control.signals.get(timeout=60)
        finally:
            extension.stop(None)
        assert worker.poll() is None
    assert (signum, ranks) == (signal.SIGKILL, [1])
    assert reason == "its timer 'step' had expired, so plaunch sent it SIGKILL"


def test_the_end_of_the_launch_ends_the_wait_for_the_start(tmp_path):
    path, has_asked = tmp_path / "pipe", threading.Event()
    starting = Snapshot(WorkerState.INIT, 0, 0, (0,), {})

    def snapshots():
        while True:
            has_asked.set()
            yield starting

    extension = TimerExtension(str(path), "job")
    extension.start(StartingControl(snapshots()))
    with running_python("-c", "import time; time.sleep(600)") as worker:
        expire(path, worker.pid)
        assert has_asked.wait(60)
        extension.stop(None)
        assert worker.wait(60) == -signal.SIGKILL
    assert not path.exists()


def test_a_failure_for_another_reason_is_not_explained(enabled):
    config = LaunchConfig(1, 1, 1, max_restarts=0)
    with pytest.raises(ChildFailedError) as raised:
        elastic_launch(config, "/bin/sh")("-c", "kill -TERM $$")
    assert "timer" not in raised.value.failures[0].message


class Server(HealthCheckServer):
    """Records its calls."""

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
