"""The agent in a job that decides for all of its nodes, with real worker processes."""

from __future__ import annotations

import contextlib
import logging
import signal
from functools import partial

import pytest
from plaunch.agent import LocalElasticAgent, WorkerState, notifications, phases
from plaunch.errors import PlaunchError, RendezvousConnectionError, SignalException
from plaunch.process import ChildFailedError, ProcessFailure, SignalAction
from plaunch.testing import FakeJobRendezvous

from helpers.agents import SAVING, UP, WAIT_IN_ROUND_0, Node, and_then
from helpers.processes import is_reaped
from helpers.signals import Policy, send
from helpers.waiting import wait_until

SEGFAULT = {"host": "b", "last_lines": ["oh no"], "timestamp": 1000.0}
ELSEWHERE = {7: ProcessFailure(1, 12, -signal.SIGSEGV, "", **SEGFAULT)}
BOTH = ("0.0.0", "0.0.1")
ASKED = ("asked.0", "asked.1")


@pytest.fixture
def create_node(tmp_path):
    nodes = []

    def create(**job):
        nodes.append(Node(tmp_path, FakeJobRendezvous(local_world_size=2, **job)))
        return nodes[-1]

    yield create
    for node in nodes:
        node.handler.shutdown()


def test_a_failure_elsewhere_restarts_the_workers_with_the_jobs_attempt(create_node):
    node = create_node(max_restarts=3)
    node.handler.attempt = 1  # as for a node that came late
    fail, first = partial(node.handler.fail_elsewhere, ELSEWHERE), ("0.1.0", "0.1.1")
    assert node.run(WAIT_IN_ROUND_0, fail, after=first).state is WorkerState.SUCCEEDED
    assert node.starts() == ["0.1.0", "0.1.1", "1.2.0", "1.2.1"]
    assert all(is_reaped(worker["pid"]) for worker in node.workers(*first))
    assert node.handler.reported == []


def test_rounds_of_one_attempt_have_logs_of_their_own(create_node):
    node = create_node(max_restarts=1)
    result = node.run(WAIT_IN_ROUND_0, node.handler.arrive, after=BOTH)
    assert result.state is WorkerState.SUCCEEDED
    assert node.starts() == ["0.0.0", "0.0.1", "1.0.0", "1.0.1"]
    folders = {path.name for path in node.folder.glob("logs/*/attempt_*")}
    assert folders == {"attempt_0", "attempt_0.1"}


def test_the_end_of_the_job_is_the_same_report_here_as_elsewhere(create_node):
    node = create_node(world_size=4)
    fail = partial(node.handler.conclude, "failed", ELSEWHERE)
    result = node.run(WAIT_IN_ROUND_0, fail, after=BOTH)
    error = ChildFailedError("train.py", result.failures, first=result.first_failure)
    assert error.exit_code == 128 + 11
    assert str(error).startswith("train.py FAILED: rank 7 on b: killed by SIGSEGV (signal 11)\n")
    assert "    oh no" in str(error)


FAIL_WITH_WORDS = UP + (
    "if rank == 1:\n    print('no luck', file=sys.stderr)\n    sys.exit(19)\ntime.sleep(300)\n"
)


def test_the_report_of_a_failure_to_the_other_nodes(create_node):
    node = create_node(rank=1, world_size=2)
    result = node.run(FAIL_WITH_WORDS)
    ((failures, is_final),) = node.handler.reported
    assert (list(failures), is_final) == ([3], False)
    failure = failures[3]
    assert (failure.exitcode, failure.local_rank, failure.last_lines) == (19, 1, ["no luck"])
    assert (result.first_failure, result.stopped) == (3, {2: -15})


FAIL_BOTH = UP + "up()\nif rank == 0:\n    wait_for('go')\n    sys.exit(19)\ntime.sleep(300)\n"


def test_a_worker_that_fails_just_after_the_others_is_reported(create_node, monkeypatch):
    """Its own node sees the change first, and looks once more before it stops the workers."""
    monkeypatch.setattr(phases, "_LAST_CHECK", 60.0)
    node = create_node(max_restarts=0, world_size=2)

    def fail():
        node.handler.fail_elsewhere(ELSEWHERE)
        node.touch("go")

    result = node.run(FAIL_BOTH, fail, after=BOTH)
    assert [rank for failures, _ in node.handler.reported for rank in failures] == [0]
    assert result.first_failure == 7
    assert set(result.failures) == {7, 0}


def test_a_node_that_has_lost_touch_leaves_no_workers(create_node):
    node = create_node(world_size=2)
    with pytest.raises(RendezvousConnectionError):
        node.run(WAIT_IN_ROUND_0, node.handler.cut_off, after=BOTH)
    assert all(is_reaped(worker["pid"]) for worker in node.workers(*BOTH))


def test_workers_run_again_if_others_fail_after_they_have_succeeded(create_node):
    node = create_node(max_restarts=1, world_size=2, ends=False)

    def go_on():
        if node.handler.successes == 1:
            node.handler.fail_elsewhere(ELSEWHERE)
        else:
            node.handler.conclude("succeeded")

    and_then(node.handler, "report_success", go_on)
    result = node.run(UP + "up()\n")
    assert result.state is WorkerState.SUCCEEDED
    assert node.starts() == ["0.0.0", "0.0.1", "1.1.0", "1.1.1"]


# Succeeds, and leaves a process behind that ignores SIGTERM.
LEFT = """\
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
time.sleep(600)
"""
LEAVING = UP + (
    f"command = [sys.executable, '-c', {LEFT!r}]\n"
    "subprocess.Popen(command, stdout=subprocess.PIPE).stdout.readline()\n"
    "up()\n"
)


@pytest.mark.parametrize("news", ["arrive", "fail_elsewhere"])
def test_workers_run_again_if_the_change_arrives_while_orphans_are_stopped(create_node, news):
    """Nobody says it twice."""
    node = create_node(max_restarts=1, world_size=2, ends=False)
    job = node.handler
    changes = [job.arrive if news == "arrive" else lambda: job.fail_elsewhere(ELSEWHERE)]
    and_then(job, "report_success", lambda: job.conclude("succeeded"))

    class Agent(LocalElasticAgent):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            begin = self._workers.begin_clearing

            def begin_clearing():
                if changes:
                    changes.pop()()
                return begin()

            self._workers.begin_clearing = begin_clearing

    result = node.run(LEAVING, kind=Agent)
    assert result.state is WorkerState.SUCCEEDED
    attempt = int(news == "fail_elsewhere")
    assert node.starts() == ["0.0.0", "0.0.1", f"1.{attempt}.0", f"1.{attempt}.1"]


NOTIFY = Policy(SIGUSR2=SignalAction.NOTIFY)
UNTIL_TOLD = UP + (
    "signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))\nup()\nwhile True: time.sleep(0.01)\n"
)


@pytest.mark.parametrize("is_here", [True, False])
def test_a_forwarded_signal_of_any_node_reaches_the_workers(create_node, is_here):
    node = create_node(world_size=2)
    tell = partial(send if is_here else node.handler.notice, signal.SIGUSR2)
    result = node.run(UNTIL_TOLD, tell, after=BOTH, signal_policy=NOTIFY)
    assert result.state is WorkerState.SUCCEEDED
    assert node.handler.notices == ([signal.SIGUSR2] if is_here else [])


def test_plugins_that_disagree_on_one_node_end_the_job(create_node):
    node = create_node(max_restarts=3)

    def worker_env(worker, env):
        raise PlaunchError("two plugins disagree")

    with pytest.raises(PlaunchError, match="two plugins disagree"):
        node.run(WAIT_IN_ROUND_0, worker_env=worker_env)
    ((failures, is_final),) = node.handler.reported
    assert (list(failures), is_final) == ([-1], True)
    assert node.starts() == node.exits() == []


SLOW_TO_STOP = UP + (
    "signal.signal(signal.SIGTERM, lambda *_: None)\n"
    "if rank == 1:\n"
    "    wait_for('0.0.0')\n"
    "    print('no luck', file=sys.stderr)\n"
    "    sys.exit(19)\n"
    "up()\n"
    "wait_for('go')\n"
)


def test_a_failure_is_reported_before_slow_workers_have_stopped(create_node):
    node = create_node()
    and_then(node.handler, "report_failure", lambda: node.touch("go"))
    result = node.run(SLOW_TO_STOP)
    ((failures, _),) = node.handler.reported
    assert {rank: failure.last_lines for rank, failure in failures.items()} == {1: ["no luck"]}
    assert result.first_failure == 1
    assert result.stopped == {0: 0}


@pytest.mark.parametrize(
    ("act", "said", "error"),
    [
        pytest.param(
            lambda job: job.cut_off(),
            "the other nodes cannot be reached any more",
            RendezvousConnectionError,
            id="the store is lost",
        ),
        pytest.param(
            lambda job: job.conclude("failed", ELSEWHERE),
            "the job ended: rank 7 on b",
            None,
            id="the job has failed",
        ),
        pytest.param(
            lambda job: job.notice(signal.SIGUSR1),
            "the workers of this node are being stopped and do not get it",
            SignalException,
            id="a notice",
        ),
        pytest.param(
            lambda _: send(signal.SIGINT),
            "the rest of the grace is skipped",
            SignalException,
            id="Ctrl-C",
        ),
    ],
)
def test_events_during_a_stop_are_handled_before_its_end(create_node, caplog, act, said, error):
    """The workers take an hour to stop; whoever waits for that hears of nothing."""
    caplog.set_level(logging.INFO, "plaunch")
    node = create_node(max_restarts=3)
    heard = []

    def tell():
        node.handler.arrive()
        node.wait_for(*ASKED)
        act(node.handler)
        try:
            wait_until(lambda: said in caplog.text, "it is heard")
            heard.append(said)
        finally:
            node.touch("enough")
            if "do not get it" in said:
                send(signal.SIGINT)  # the notice ends nothing

    with contextlib.nullcontext() if error is None else pytest.raises(error):
        result = node.run(SAVING, tell, after=BOTH, shutdown_timeout=3600)
        assert list(result.failures) == [7]
    assert heard == [said]


FAILS_ONCE = UP + "up()\nif round_ == 0: sys.exit(3)\ntime.sleep(300)\n"


def test_a_failure_before_a_restart_is_not_the_cause_of_a_later_error(create_node):
    node = create_node(max_restarts=3)

    def restart():
        _, is_final = node.handler.reported[-1]
        if not is_final:
            node.handler.fail_elsewhere(ELSEWHERE)

    and_then(node.handler, "report_failure", restart)
    with pytest.raises(RuntimeError, match="out of luck"):
        node.run(FAILS_ONCE, kind=node.failing(RuntimeError("out of luck"), "1.1.0"))
    (_, was_final), (failures, is_final) = node.handler.reported
    assert (was_final, is_final) == (False, True)
    assert list(failures) == [-1]


def test_an_error_of_the_launcher_is_logged_before_the_grace_period(create_node, caplog):
    node = create_node()
    failing = node.failing(RuntimeError("out of luck"), *BOTH)

    def let_go():
        try:
            assert "the launcher has failed, and stops the workers: RuntimeError" in caplog.text
        finally:
            node.touch("enough")

    with pytest.raises(RuntimeError, match="out of luck"):
        node.run(SAVING, let_go, after=ASKED, shutdown_timeout=3600, kind=failing)


def test_one_stop_signal_while_an_error_tears_the_loop_down_skips_no_grace(create_node):
    node = create_node()
    failing = node.failing(KeyboardInterrupt(), *BOTH)

    def ask():
        send(signal.SIGTERM)
        wait_until(lambda: node.notifications.of(notifications.SignalReceived), "it is heard")
        node.touch("enough")

    with pytest.raises(KeyboardInterrupt):
        node.run(SAVING, ask, after=ASKED, shutdown_timeout=3600, kind=failing)
    assert node.notifications.of(notifications.SignalReceived)
    assert node.has("saved.0")
    assert node.has("saved.1")
