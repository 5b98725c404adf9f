"""The agent in a job that decides for all of its nodes, with real worker processes."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time

import pytest
from plaunch.agent import LocalElasticAgent, WorkerSpec, WorkerState, loop, notifications
from plaunch.errors import PlaunchError, RendezvousConnectionError, SignalException
from plaunch.process import ChildFailedError, SignalAction
from plaunch.rendezvous import JobFailure
from plaunch.testing import FakeJobRendezvous
from plaunch_logs_default import DefaultLogsSpecs

from helpers.processes import is_reaped
from helpers.waiting import wait_for_files, wait_until

# A worker adds a file `<round>.<attempt>.<local rank>` once it is up.
UP = """\
import os, pathlib, signal, sys, time
where = pathlib.Path(sys.argv[1])
round_, attempt, rank = (
    int(os.environ[name]) for name in ("PLAUNCH_ROUND", "TORCHELASTIC_RESTART_COUNT", "LOCAL_RANK")
)
def up():
    path = where / f"{round_}.{attempt}.{rank}"
    new = where / f"{path.name}.new"
    new.write_text(str(os.getpid()))
    new.rename(path)
"""
WAIT_IN_ROUND_0 = UP + "up()\nif round_ == 0: time.sleep(300)\n"

ELSEWHERE = JobFailure(
    7,
    1000.0,
    "rank 7 on b (pid 12) failed: killed by SIGSEGV (signal 11)",
    {"host": "b", "pid": 12, "local_rank": 1, "exit_code": -11, "last_lines": ["oh no"]},
)


class Node:
    """One agent on real workers, in a job whose other nodes the test plays."""

    def __init__(self, folder, **job):
        self.folder = folder
        self.job = FakeJobRendezvous(local_world_size=2, **job)
        self.has_ended = False

    def run(self, script, meanwhile=lambda: None, grace=20, kind=LocalElasticAgent, **options):
        spec = WorkerSpec(
            role="trainer",
            local_world_size=2,
            rdzv_handler=self.job,
            entrypoint=sys.executable,
            args=("-c", script, str(self.folder), LEFT),
            max_restarts=self.job.max_restarts,
        )
        logs = DefaultLogsSpecs(log_dir=str(self.folder / "logs"))
        built = kind(spec, logs, shutdown_timeout=grace, **options)
        helper = threading.Thread(target=meanwhile)
        helper.start()
        try:
            return built.run()
        finally:
            self.has_ended = True
            helper.join()

    def wait_for(self, *names):
        """Wait for workers to be up; their pids."""
        deadline = time.monotonic() + 60
        while not all((self.folder / name).exists() for name in names):
            if self.has_ended or time.monotonic() > deadline:
                return []
            threading.Event().wait(0.005)
        return [int((self.folder / name).read_text()) for name in names]

    def wait_for_files(self, *names):
        """Wait for files of the test's own."""
        wait_for_files(*(self.folder / name for name in names))

    def attempts(self):
        """Which attempt and rank there was in each round."""
        return sorted(path.name for path in self.folder.glob("?.?.?"))


@pytest.fixture
def create_node(tmp_path):
    nodes = []

    def create(**job):
        nodes.append(Node(tmp_path, **job))
        return nodes[-1]

    yield create
    for node in nodes:
        node.job.shutdown()


def test_a_failure_elsewhere_restarts_the_workers_with_the_jobs_attempt(create_node):
    node = create_node(max_restarts=3)
    node.job.attempt = 1  # as for a node that came late
    pids = []

    def fail():
        pids.extend(node.wait_for("0.1.0", "0.1.1"))
        node.job.fail_elsewhere(ELSEWHERE)

    assert node.run(WAIT_IN_ROUND_0, fail).state is WorkerState.SUCCEEDED
    assert node.attempts() == ["0.1.0", "0.1.1", "1.2.0", "1.2.1"]
    assert all(map(is_reaped, pids))
    assert node.job.reported == []


def test_rounds_of_one_attempt_have_logs_of_their_own(create_node):
    node = create_node(max_restarts=1)

    def arrive():
        node.wait_for("0.0.0", "0.0.1")
        node.job.arrive()

    assert node.run(WAIT_IN_ROUND_0, arrive).state is WorkerState.SUCCEEDED
    assert node.attempts() == ["0.0.0", "0.0.1", "1.0.0", "1.0.1"]
    folders = {path.name for path in node.folder.glob("logs/*/attempt_*")}
    assert folders == {"attempt_0", "attempt_0.1"}


def test_the_end_of_the_job_is_the_same_report_here_as_elsewhere(create_node):
    node = create_node(world_size=4)

    def fail():
        node.wait_for("0.0.0", "0.0.1")
        node.job.conclude("failed", ELSEWHERE)

    result = node.run(WAIT_IN_ROUND_0, fail)
    error = ChildFailedError("train.py", result.failures, first=result.first_failure)
    assert error.exit_code == 128 + 11
    assert str(error).startswith("train.py FAILED: rank 7 on b: killed by SIGSEGV (signal 11)\n")
    assert "    oh no" in str(error)


FAIL_WITH_WORDS = UP + (
    "if rank == 1:\n    print('no luck', file=sys.stderr)\n    sys.exit(19)\ntime.sleep(300)\n"
)


def test_what_the_others_are_told_of_a_failure(create_node):
    node = create_node(rank=1, world_size=2)
    result = node.run(FAIL_WITH_WORDS)
    (((failure,), is_final),) = node.job.reported
    assert (failure.rank, is_final) == (3, False)
    assert failure.detail["exit_code"] == 19
    assert failure.detail["local_rank"] == 1
    assert failure.detail["last_lines"] == ["no luck"]
    assert (result.first_failure, result.stopped) == (3, {2: -15})


FAIL_BOTH = UP + (
    "import signal\n"
    "up()\n"
    "if rank == 0:\n"
    "    while not (where / 'go').exists(): time.sleep(0.002)\n"
    "    sys.exit(19)\n"
    "time.sleep(300)\n"
)


def test_a_worker_that_fails_just_after_the_others_is_told_of(create_node, monkeypatch):
    """Its own node sees the change first, and looks once more before it stops the workers."""
    monkeypatch.setattr(loop, "_LAST_LOOK", 60.0)
    node = create_node(max_restarts=0, world_size=2)

    def fail():
        node.wait_for("0.0.0", "0.0.1")
        node.job.fail_elsewhere(ELSEWHERE)
        (node.folder / "go").touch()

    result = node.run(FAIL_BOTH, fail)
    assert [failure.rank for told, _ in node.job.reported for failure in told] == [0]
    assert result.first_failure == 7
    assert set(result.failures) == {7, 0}


def test_a_node_that_has_lost_touch_leaves_no_workers(create_node):
    node = create_node(world_size=2)
    pids = []

    def cut_off():
        pids.extend(node.wait_for("0.0.0", "0.0.1"))
        node.job.cut_off()

    with pytest.raises(RendezvousConnectionError):
        node.run(WAIT_IN_ROUND_0, cut_off)
    assert all(map(is_reaped, pids))


def test_workers_run_again_if_others_fail_after_they_have_succeeded(create_node):
    node = create_node(max_restarts=1, world_size=2, ends=False)
    report = node.job.report_success

    def go_on():
        report()
        if node.job.successes == 1:
            node.job.fail_elsewhere(ELSEWHERE)
        else:
            node.job.conclude("succeeded")

    node.job.report_success = go_on
    result = node.run(UP + "up()\n")
    assert result.state is WorkerState.SUCCEEDED
    assert node.attempts() == ["0.0.0", "0.0.1", "1.1.0", "1.1.1"]


# Succeeds, and leaves a process behind that ignores SIGTERM.
LEFT = """\
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
time.sleep(600)
"""
LEAVING = UP + (
    "import subprocess\n"
    "command = [sys.executable, '-c', sys.argv[2]]\n"
    "subprocess.Popen(command, stdout=subprocess.PIPE).stdout.readline()\n"
    "up()\n"
)


@pytest.mark.parametrize("news", ["arrive", "fail_elsewhere"])
def test_workers_run_again_if_that_is_heard_while_what_they_left_is_ended(create_node, news):
    """Nobody says it twice."""
    node = create_node(max_restarts=1, world_size=2, ends=False)
    succeeded = threading.Event()
    report = node.job.report_success

    def go_on():
        report()
        succeeded.set()
        node.job.conclude("succeeded")

    node.job.report_success = go_on

    class Agent(LocalElasticAgent):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            begin = self._workers.begin_clearing

            def begin_clearing():
                if not node.told:
                    node.told = True
                    getattr(node.job, news)(*([ELSEWHERE] if news == "fail_elsewhere" else []))
                return begin()

            self._workers.begin_clearing = begin_clearing

    node.told = False
    result = node.run(LEAVING, kind=Agent)
    assert result.state is WorkerState.SUCCEEDED
    attempt = int(news == "fail_elsewhere")
    assert node.attempts() == ["0.0.0", "0.0.1", f"1.{attempt}.0", f"1.{attempt}.1"]


class Notify:
    """SIGUSR2 is passed on."""

    def signals(self):
        return (signal.SIGUSR2,)

    def action(self, signum):
        return SignalAction.NOTIFY


UNTIL_TOLD = (
    UP
    + "signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))\n"
    + "up()\n"
    + "while True: time.sleep(0.01)\n"
)


@pytest.mark.parametrize("is_here", [True, False])
def test_a_notice_reaches_the_workers_wherever_it_comes_from(create_node, is_here):
    node = create_node(world_size=2)

    def tell():
        node.wait_for("0.0.0", "0.0.1")
        if is_here:
            os.kill(os.getpid(), signal.SIGUSR2)
        else:
            node.job.notice(signal.SIGUSR2)

    assert node.run(UNTIL_TOLD, tell, signal_policy=Notify()).state is WorkerState.SUCCEEDED
    assert node.job.notices == ([signal.SIGUSR2] if is_here else [])


def test_plugins_that_disagree_on_one_node_end_the_job(create_node):
    node = create_node(max_restarts=3)

    def worker_env(worker, env):
        raise PlaunchError("two plugins disagree")

    with pytest.raises(PlaunchError, match="two plugins disagree"):
        node.run(WAIT_IN_ROUND_0, worker_env=worker_env)
    (((failure,), is_final),) = node.job.reported
    assert (failure.rank, is_final) == (-1, True)
    assert node.attempts() == []


SLOW_TO_STOP = UP + (
    "signal.signal(signal.SIGTERM, lambda *_: None)\n"
    "if rank == 1:\n"
    "    while not (where / '0.0.0').exists(): time.sleep(0.002)\n"
    "    print('no luck', file=sys.stderr)\n"
    "    sys.exit(19)\n"
    "up()\n"
    "while not (where / 'go').exists(): time.sleep(0.002)\n"
)


def test_the_job_hears_of_a_failure_before_slow_workers_have_stopped(create_node):
    node = create_node()
    report = node.job.report_failure

    def report_and_go(failures, **options):
        report(failures, **options)
        (node.folder / "go").touch()

    node.job.report_failure = report_and_go
    result = node.run(SLOW_TO_STOP)
    (((failure,), _),) = node.job.reported
    assert (failure.rank, failure.detail["last_lines"]) == (1, ["no luck"])
    assert result.first_failure == 1
    assert result.stopped == {0: 0}


# Takes a file for the word to end: a save that takes its time.
SAVING = (
    UP
    + "def stop(*_):\n"
    + "    (where / f'asked.{rank}').touch()\n"
    + "    while not (where / 'enough').exists(): time.sleep(0.005)\n"
    + "    sys.exit(0)\n"
    + "signal.signal(signal.SIGTERM, stop)\n"
    + "up()\n"
    + "while True: time.sleep(0.01)\n"  # a signal just before a long sleep is not seen for long
)


@pytest.mark.parametrize("news", ["the store is lost", "the job has failed", "a notice", "Ctrl-C"])
def test_what_happens_during_a_stop_is_heard_before_it_is_over(create_node, caplog, news):
    """The workers take an hour to stop; whoever waits for that hears of nothing."""
    caplog.set_level(logging.INFO, "plaunch")
    node = create_node(max_restarts=3)
    said = {
        "the store is lost": "the other nodes cannot be reached any more",
        "the job has failed": "the job ended: rank 7 on b",
        "a notice": "the workers of this node are being stopped and do not get it",
        "Ctrl-C": "the rest of the grace is skipped",
    }[news]
    heard = []

    def tell():
        node.wait_for("0.0.0", "0.0.1")
        node.job.arrive()
        node.wait_for_files("asked.0", "asked.1")
        if news == "the store is lost":
            node.job.cut_off()
        elif news == "the job has failed":
            node.job.conclude("failed", ELSEWHERE)
        elif news == "a notice":
            node.job.notice(signal.SIGUSR1)
        else:
            os.kill(os.getpid(), signal.SIGINT)
        try:
            wait_until(lambda: said in caplog.text, "it is heard")
            heard.append(news)
        finally:
            (node.folder / "enough").touch()
            if news == "a notice":
                os.kill(os.getpid(), signal.SIGINT)

    expected = {
        "the store is lost": RendezvousConnectionError,
        "a notice": SignalException,
        "Ctrl-C": SignalException,
    }
    if news in expected:
        with pytest.raises(expected[news]):
            node.run(SAVING, tell, grace=3600)
    else:
        result = node.run(SAVING, tell, grace=3600)
        assert list(result.failures) == [7]
    assert heard == [news]


FAILS_ONCE = UP + "up()\nif round_ == 0: sys.exit(3)\ntime.sleep(300)\n"


def test_a_failure_that_was_mended_is_not_the_cause_of_what_comes_later(create_node):
    node = create_node(max_restarts=3)
    report = node.job.report_failure

    def restart(failures, **options):
        report(failures, **options)
        if not options.get("is_final"):
            node.job.fail_elsewhere(ELSEWHERE)

    node.job.report_failure = restart

    class Agent(LocalElasticAgent):
        def _monitor_workers(self, worker_group):
            if (node.folder / "1.1.0").exists() and not node.has_ended:
                node.has_ended = True
                raise RuntimeError("out of luck")
            return super()._monitor_workers(worker_group)

    with pytest.raises(RuntimeError, match="out of luck"):
        node.run(FAILS_ONCE, kind=Agent)
    (_, was_final), (failures, is_final) = node.job.reported
    assert (was_final, is_final) == (False, True)
    assert [failure.rank for failure in failures] == [-1]


def test_an_error_of_the_launcher_is_said_before_the_workers_have_their_grace(create_node, caplog):
    node = create_node()

    class Agent(LocalElasticAgent):
        def _monitor_workers(self, worker_group):
            if (node.folder / "0.0.0").exists() and (node.folder / "0.0.1").exists():
                raise RuntimeError("out of luck")
            return super()._monitor_workers(worker_group)

    def let_go():
        node.wait_for_files("asked.0", "asked.1")
        try:
            assert "the launcher has failed, and stops the workers: RuntimeError" in caplog.text
        finally:
            (node.folder / "enough").touch()

    with pytest.raises(RuntimeError, match="out of luck"):
        node.run(SAVING, let_go, grace=3600, kind=Agent)


def test_one_stop_signal_while_an_error_tears_the_loop_down_skips_no_grace(create_node):
    node = create_node()
    heard = threading.Event()

    class Agent(LocalElasticAgent):
        def _monitor_workers(self, worker_group):
            if (node.folder / "0.0.0").exists() and (node.folder / "0.0.1").exists():
                raise KeyboardInterrupt
            return super()._monitor_workers(worker_group)

    def ask():
        node.wait_for_files("asked.0", "asked.1")
        os.kill(os.getpid(), signal.SIGTERM)
        heard.wait(60)
        (node.folder / "enough").touch()

    def note(notification):
        if isinstance(notification, notifications.SignalReceived):
            heard.set()

    script = SAVING.replace("    sys.exit(0)", "    (where / f'saved.{rank}').touch(); sys.exit(0)")
    with pytest.raises(KeyboardInterrupt):
        node.run(script, ask, grace=3600, kind=Agent, notify=note)
    assert heard.is_set()
    assert (node.folder / "saved.0").exists()
    assert (node.folder / "saved.1").exists()
