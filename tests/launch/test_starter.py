"""A plugin that starts the processes of workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from plaunch import LaunchConfig, launch_agent
from plaunch.errors import PluginError, SignalException
from plaunch.process import ChildFailedError

from helpers.hooks import plugin_of
from helpers.waiting import BOUND


class Starter:
    """Starts the worker of local rank 0 itself; says what it was asked for."""

    def __init__(self, seconds=()):
        self.calls = []
        self.envs = {}
        self._seconds = list(seconds)

    def begin(self, command, environ):
        self.calls.append(("begin", command[-1], "PATH" in environ))

    def wait(self):
        self.calls.append(("wait",))
        return self._seconds.pop(0) if self._seconds else {}

    def prepare(self, envs):
        self.envs = envs
        self.calls.append(("prepare", sorted(env["RANK"] for env in envs.values())))

    def start(self, local_rank, command, *, env, stdout, stderr, pass_fds=(), binding=None):
        self.calls.append(("start", local_rank, command[-1], env == self.envs[local_rank]))
        if local_rank:
            return None
        env = {**env, "STARTED": "here"}
        return subprocess.Popen(
            command, env=env, stdout=stdout, stderr=stderr, start_new_session=True
        )

    def start_helper(self, command, *, env, stdin, stdout, stderr, pass_fds=()):
        return None

    def fds(self):
        return []

    def close(self):
        self.calls.append(("close",))


CODE = """
import os, sys, time
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(sys.argv[1] + rank + attempt, "w") as file:
    file.write(os.environ.get("STARTED", "afresh"))
if rank + attempt == "00":
    while not os.path.exists(sys.argv[1] + "10"):
        time.sleep(0.01)
    sys.exit(1)
"""


def launch(starter, *args, nproc=2, **options):
    config = LaunchConfig(1, 1, nproc, monitor_interval=60, **options)
    plugin = plugin_of(plaunch_worker_starter=lambda context: starter)
    return launch_agent(config, sys.executable, ["-c", *args], plugins=[plugin])


def test_it_starts_the_workers_of_every_round(tmp_path):
    starter = Starter()
    launch(starter, CODE, f"{tmp_path}/", max_restarts=1)
    last = f"{tmp_path}/"
    rounds = [
        ("wait",),
        ("prepare", ["0", "1"]),
        ("start", 0, last, True),
        ("start", 1, last, True),
    ]
    assert starter.calls == [("begin", last, True), *rounds, *rounds, ("close",)]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "00": "here",
        "01": "here",
        "10": "afresh",
        "11": "afresh",
    }


def test_how_a_worker_that_it_has_started_ends_is_known():
    with pytest.raises(ChildFailedError) as caught:
        launch(Starter(), "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", nproc=1)
    assert caught.value.failures[0].exitcode == -signal.SIGKILL


def test_an_event_has_the_preloaded_modules(tmp_path):
    events = []
    recorder = plugin_of(
        "Recorder", plaunch_event_handlers=lambda: {"memory": lambda context: Handler(events)}
    )
    starter = Starter([{"torch": 1.5, "numpy": 0.5}])
    plugin = plugin_of(plaunch_worker_starter=lambda context: starter)
    config = LaunchConfig(1, 1, 2, event_log_handler="memory")
    launch_agent(config, sys.executable, ["-c", "pass"], plugins=[plugin, recorder])
    (done,) = (event for event in events if event.name == "plaunch.preload.completed")
    assert (done.metadata["modules"], done.metadata["seconds"]) == ("torch,numpy", 2.0)
    started = [event for event in events if event.name == "plaunch.worker.started"]
    assert [event.metadata["forked"] for event in started] == [True, False]
    names = [event.name for event in events]
    assert names.index("plaunch.rendezvous.completed") < names.index(done.name)
    assert names.index(done.name) < names.index("plaunch.worker.started")


class Handler:
    def __init__(self, events):
        self.handle = events.append

    def close(self):
        pass


def test_a_signal_does_not_wait_for_it(gate):
    starter = Starter()
    starter.wait = lambda: gate.wait(BOUND)
    begun = time.monotonic()
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    with pytest.raises(SignalException):
        launch(starter, "pass", nproc=1)
    timer.join()
    assert time.monotonic() - begun < BOUND / 2
    assert starter.calls[-1] == ("close",)


def test_a_starter_whose_preparation_fails_starts_the_workers(caplog):
    starter = Starter()
    starter.wait = lambda: {}["x"]
    launch(starter, "pass", nproc=1)
    assert "the workers could not be prepared: 'x'" in caplog.text
    assert ("start", 0, "pass", True) in starter.calls


def test_what_is_none_is_named():
    with pytest.raises(PluginError, match="plaunch_worker_starter, which is not a Starter"):
        launch(object(), "pass")


def test_what_lacks_a_method_is_named_at_the_start():
    """A class that derives from `plaunch.process.Starter` has them all."""
    starter = Starter()
    starter.start_helper = None
    with pytest.raises(PluginError, match="plaunch_worker_starter, which is not a Starter"):
        launch(starter, "pass")
