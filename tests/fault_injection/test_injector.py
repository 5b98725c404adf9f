"""The injector of one node, driven by its hooks; whole launches are in tests/e2e."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from plaunch.agent import WorkerExit, WorkerInfo, WorkerState
from plaunch.errors import UsageError
from plaunch.plugin import PluginContext
from plaunch_fault_injection.exits import VARIABLE
from plaunch_fault_injection.faults import parse_faults
from plaunch_fault_injection.injector import Injector
from plaunch_fault_injection.plugin import FaultInjection

from helpers.clock import Clock
from helpers.groups import make_group
from helpers.waiting import BOUND, wait_until


class Control:
    """Records messages and signals."""

    def __init__(self):
        self.said = []
        self.sent = []

    def say(self, text):
        self.said.append(text)

    def signal_workers(self, signum, ranks=None, reason=""):
        self.sent.append((signum, ranks, reason))

    def until_said(self, *texts):
        """Wait until these messages were logged, after that of the start."""
        wait_until(lambda: self.said[1:] == [*texts], lambda: self.said[1:])


def worker(rank, pid=None):
    return WorkerInfo(rank % 2, rank, rank, 4, 4, pid)


def group(number=0):
    """The second of two nodes in a round, with ranks 2 and 3; the pids are made up."""
    return make_group(
        round=number,
        attempt=number,
        group_rank=1,
        group_world_size=2,
        workers=tuple(worker(rank, pid=4000 + 10 * number + rank) for rank in (2, 3)),
    )


def context(**fields):
    return PluginContext("job", "role", "gpu-7.lab", **fields)


class Node:
    """One node with these faults."""

    def __init__(self, text, **fields):
        self.clock = Clock()
        self.control = Control()
        self.injector = Injector(context(**fields), parse_faults(text), self.clock)
        self.injector.start(self.control)

    def begin(self, number=0):
        self.injector.prepare(group(number))
        self.injector.begin(group(number))

    def wait(self, seconds):
        """Advance the clock."""
        with self.injector._changed:
            self.clock.now += seconds
            self.injector._changed.notify_all()


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Create a node with a temporary folder of the test."""
    nodes = []

    def make(text, **fields):
        nodes.append(Node(text, **fields))
        return nodes[-1]

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield make
    for each in nodes:
        each.injector.stop(None)
    assert list(tmp_path.glob("plaunch_chaos_*")) == []


# --- the plugin -----------------------------------------------------------------------------------


def test_no_faults_without_the_option():
    plugin = FaultInjection()
    assert plugin.plaunch_extensions(context()) == []
    plugin.plaunch_after_rendezvous(group())
    assert plugin.plaunch_worker_env(worker(2)) == {}
    plugin.plaunch_workers_started(group())
    plugin.plaunch_worker_exited(WorkerExit(worker(2), 1, stopped=False))
    plugin.plaunch_state_changed(WorkerState.FAILED)


@pytest.mark.parametrize(
    ("given", "message"),
    [(["kill:rank=1"], r"inject is \['kill:rank=1'\]"), ("kill", "inject: fault 'kill': it has")],
)
def test_malformed_options_in_code(given, message):
    with pytest.raises(UsageError, match=message):
        FaultInjection().plaunch_extensions(context(options={"inject": given}))


@pytest.mark.parametrize(
    ("happens", "is_over"),
    [
        (lambda plugin: plugin.plaunch_worker_exited(WorkerExit(worker(3), 0, False)), False),
        (lambda plugin: plugin.plaunch_state_changed(WorkerState.HEALTHY), False),
        (lambda plugin: plugin.plaunch_worker_exited(WorkerExit(worker(3), 1, False)), True),
        (lambda plugin: plugin.plaunch_worker_exited(WorkerExit(worker(3), 0, True)), True),
        (lambda plugin: plugin.plaunch_state_changed(WorkerState.STOPPED), True),
    ],
)
def test_when_a_round_ends(happens, is_over):
    plugin = FaultInjection()
    (injector,) = plugin.plaunch_extensions(context(options={"inject": "kill:rank=2"}))
    plugin.plaunch_workers_started(group())  # without the thread, which would take the fault
    happens(plugin)
    control = Control()
    injector.start(control)
    if not is_over:
        control.until_said("kill:rank=2: SIGKILL to rank 2 (pid 4002)")
    injector.stop(None)
    assert len(control.sent) == (not is_over)


# --- workers --------------------------------------------------------------------------------------


def test_only_workers_of_this_node_get_signals(node):
    here = node("kill:rank=0;kill:rank=2,signal=SIGTERM;hang:rank=3")
    here.begin()
    here.control.until_said(
        "kill:rank=2,signal=SIGTERM: SIGTERM to rank 2 (pid 4002)",
        "hang:rank=3: SIGSTOP to rank 3 (pid 4003)",
    )
    wait_until(lambda: len(here.control.sent) == 2, "two signals")
    assert here.control.sent == [
        (signal.SIGTERM, [2], "injected by --inject=kill:rank=2,signal=SIGTERM"),
        (signal.SIGSTOP, [3], "injected by --inject=hang:rank=3"),
    ]


def test_a_missing_target_is_reported_once(node):
    here = node("kill:rank=4;kill:agent,group-rank=2;kill:rank=0")
    here.begin()
    here.begin(1)
    here.control.until_said(
        "kill:rank=4: not done: the last rank is 3",
        "kill:agent,group-rank=2: not done: the last group rank is 1",
    )


def test_an_ended_worker_gets_no_signal(node):
    here = node("kill:rank=2,after=10s;hang:rank=3,after=10s")
    here.begin()
    here.injector.remove_worker(2)
    here.wait(10)
    here.control.until_said(
        "kill:rank=2,after=10s: not done: rank 2 has ended",
        "hang:rank=3,after=10s: SIGSTOP to rank 3 (pid 4003)",
    )


def test_a_stop_ends_with_its_time_or_its_worker(node):
    here = node("stop:rank=2,for=20s;stop:rank=3,for=10s")
    here.begin()
    stopped = (
        "stop:rank=2,for=20s: SIGSTOP to rank 2 (pid 4002) for 20 s",
        "stop:rank=3,for=10s: SIGSTOP to rank 3 (pid 4003) for 10 s",
    )
    here.control.until_said(*stopped)
    here.wait(10)
    here.control.until_said(*stopped, "stop:rank=3,for=10s: SIGCONT to rank 3 (pid 4003)")
    here.begin(1)  # rank 2 is another worker now, which was not suspended
    here.wait(10)
    wait_until(lambda: not here.injector._scheduled, "the end of the time")
    here.injector.stop(None)
    assert len(here.control.said) == 4


def test_faults_are_injected_after_a_rest(node):
    here = node("kill:rank=2,after=10s")
    here.begin()
    here.injector.rest()
    here.wait(10)
    assert len(here.control.said) == 1
    for _ in range(2):  # `release` is called in every round, even without `rest`
        here.injector.release()
    here.control.until_said("kill:rank=2,after=10s: SIGKILL to rank 2 (pid 4002)")


# --- exit codes -----------------------------------------------------------------------------------


def test_workers_with_an_exit_fault_have_a_pipe(node, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "a:b")
    here = node("exit:rank=2,code=3,after=10s")
    assert here.injector.environment(3) == {}
    env = here.injector.environment(2)
    assert env["PYTHONPATH"].endswith("plaunch_fault_injection/hook:a:b")
    assert env[VARIABLE].endswith("/2")
    assert here.injector.environment(2) == env  # in another round
    anybody = node("exit:rank=any,code=3", settings={"worker_env": {"PYTHONPATH": "c"}})
    assert anybody.injector.environment(3)["PYTHONPATH"].endswith("hook:c")


def test_a_worker_that_does_not_read_its_pipe(node):
    here = node("exit:rank=2,code=3")
    here.injector.environment(2)
    here.begin()
    wait_until(lambda: here.injector._scheduled, "another try")
    here.wait(30)
    here.control.until_said(
        "exit:rank=2,code=3: not done: rank 2 (pid 4002) does not accept an exit code; only a "
        "Python process that was not forked and reads PYTHONPATH does"
    )


OWN = "open('own', 'a').write('x')"
PROGRAM = """\
import os, subprocess, sys
names = ("PYTHONPATH", "PLAUNCH_CHAOS_EXIT")
assert not any("plaunch_fault_injection" in os.environ.get(name, "") for name in names), os.environ
assert not any("plaunch_fault_injection" in entry for entry in sys.path)
subprocess.run([sys.executable, "-c", "print('child', flush=True)"], check=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("has_own", [True, False])
def test_a_worker_exits_and_has_its_own_environment(node, tmp_path, has_own):
    """The user's own `sitecustomize` is still imported by the worker and its children."""
    if has_own:
        (tmp_path / "sitecustomize.py").write_text(OWN)
    here = node("exit:rank=2,code=3", settings={"worker_env": {"PYTHONPATH": str(tmp_path)}})
    env = {**os.environ, **here.injector.environment(2)}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout.readline() == "child\n", process.stderr.read()
        here.begin()
        assert process.wait(BOUND) == 3
        message = "plaunch: rank 2 exits with code 3, injected by --inject=exit:rank=2,code=3\n"
        assert process.stderr.read() == message
    here.control.until_said("exit:rank=2,code=3: exit code 3 for rank 2 (pid 4002)")
    assert (tmp_path / "own").exists() is has_own
    assert not has_own or (tmp_path / "own").read_text() == "xx"


def test_processes_of_a_worker_do_not_read_the_pipe(node):
    """Only the worker, which leads its session, reads the pipe."""
    here = node("exit:rank=2,code=3")
    env = {**os.environ, **here.injector.environment(2)}
    command = [sys.executable, "-c", "print('here', flush=True); input()"]
    with subprocess.Popen(command, env=env, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout.readline() == "here\n"
        assert not here.injector._exits.send(2, 3, "")
        process.communicate("\n", timeout=BOUND)
    assert process.returncode == 0


# --- launchers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "is_hit"),
    [
        ("", True),
        (",node=gpu-7.lab", True),
        (",node=gpu-7", True),
        (",node=gpu", False),
        (",group-rank=1", True),
        (",group-rank=0", False),
    ],
)
def test_which_launcher_is_the_target(node, which, is_hit):
    """The launcher is this process, which records the signal."""
    noted = []
    before = signal.signal(signal.SIGUSR1, lambda *_: noted.append(1))
    try:
        here = node(f"kill:agent,signal=SIGUSR1{which};kill:rank=2,after=10s")
        here.begin()
        here.wait(10)  # one after the other
        wait_until(lambda: here.control.sent, "the second fault")
        wait_until(lambda: len(noted) == is_hit, "a signal")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(here.control.said) == 2 + is_hit


@pytest.mark.parametrize("fault", ["kill:agent", "stop:agent,for=1s"])
def test_the_first_process_of_a_container_reports_that_it_gets_no_such_signal(
    node, fault, monkeypatch
):
    here = node(fault)
    monkeypatch.setattr("os.getpid", lambda: 1)
    here.begin()
    here.control.until_said(
        f"{fault}: not done: the first process of a container gets no such signal from inside"
    )


# --- seeds and the log ----------------------------------------------------------------------------


def test_the_default_seed_comes_from_the_run_id_and_is_logged(node):
    said = [node("kill:rank=any,after=10s;hang:rank=1").control.said for _ in range(2)]
    assert said[0] == said[1]
    assert said[0][0].startswith(
        "this job will be broken on purpose, by --inject='kill:rank=any,after=10s,seed="
    )
    given = node("kill:rank=any,after=10s,seed=5").control.said
    assert given == [
        "this job will be broken on purpose, by --inject='kill:rank=any,after=10s,seed=5'"
    ]


def test_the_log(node, tmp_path):
    here = node("kill:rank=2,after=10s;kill:rank=7", log_dir=str(tmp_path / "logs"))
    here.begin(3)
    here.wait(10)
    wait_until(lambda: here.control.sent, "a signal")
    (path,) = (tmp_path / "logs").iterdir()
    assert path.name == f"chaos-gpu-7.lab-{os.getpid()}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    common = {"run_id": "job", "host": "gpu-7.lab", "agent_pid": os.getpid()}
    assert all(line.pop("timestamp") > 0 for line in lines)
    assert lines == [
        {**common, "planned": "kill:rank=2,after=10s;kill:rank=7"},
        {
            **common,
            "fault": "kill:rank=7",
            "kind": "kill",
            "what": "not done: the last rank is 3",
            "is_done": False,
            "rank": None,
            "pid": None,
            "round": 3,
            "attempt": 3,
            "seconds": None,
        },
        {
            **common,
            "fault": "kill:rank=2,after=10s",
            "kind": "kill",
            "what": "SIGKILL to rank 2 (pid 4032)",
            "is_done": True,
            "rank": 2,
            "pid": 4032,
            "round": 3,
            "attempt": 3,
            "seconds": 10.0,
        },
    ]


def test_an_unwritable_log_is_reported_once(node, tmp_path, caplog):
    (tmp_path / "file").touch()
    here = node("kill:rank=2", log_dir=str(tmp_path / "file"))
    here.begin()
    wait_until(lambda: here.control.sent, "a signal")
    (record,) = caplog.records
    assert record.getMessage().startswith("no log of injected faults is written: ")
