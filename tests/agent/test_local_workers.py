"""Workers that are stuck in the kernel, suspended, or hang."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace

import pytest
from plaunch.agent import RequestKind, WorkerState
from plaunch.errors import ExitCode, SignalException, UnkillableWorkerError, UsageError
from plaunch.process import ChildFailedError, Held
from plaunch.process.proc import read_state
from plaunch.process.watches import TIMEOUT_VARIABLE, UninterruptibleWatch
from plaunch.restarts import Cause, Decision, RestartAction
from plaunch.testing import FakeJobRendezvous
from plaunch.testing.rendezvous import FakeElasticRendezvous, FakeRendezvous

from helpers.agents import SAVING, UP, WAIT, WAIT_IN_ROUND_0, Node, and_then
from helpers.calls import meanwhile
from helpers.waiting import wait_until

SLEEP = "import signal; signal.pause()"
STAY = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"


@pytest.fixture
def make(tmp_path):
    made = []

    def make(code, nproc=1, *, max_restarts=3, **options):
        node = Node(tmp_path, FakeRendezvous())
        made.append(
            node.agent(code, nproc, monitor_interval=0.01, max_restarts=max_restarts, **options)
        )
        return made[-1]

    yield make
    for agent in made:
        # One that was given up, and could be killed after all, is nobody's any more.
        if agent._workers.context is not None:
            for worker in agent._workers.context._outcomes.workers.values():
                wait_until(lambda worker=worker: worker.poll() is not None, "its end")
                worker.reap()


def pretend_stuck(agent, local_rank):
    """Let one worker be in state D whenever it is looked at."""

    def find_state(pid):
        return "D" if pid == agent._workers.context.pids()[local_rank] else "S"

    watch = agent._workers.sleep_watch
    agent._workers.sleep_watch = UninterruptibleWatch(watch.timeout, find_state=find_state)


@pytest.mark.parametrize("max_restarts", [0, 3])
def test_a_stuck_worker_ends_the_job_whatever_restarts_are_left(make, caplog, max_restarts):
    agent = make(SLEEP, nproc=2, max_restarts=max_restarts, uninterruptible_state_timeout=0.02)
    pretend_stuck(agent, 1)
    starts = []
    and_then(agent, "_start_workers", lambda: starts.append(1))
    with pytest.raises(UnkillableWorkerError) as caught:
        agent.run()
    assert len(starts) == 1
    assert caught.value.exit_code == ExitCode.UNKILLABLE_WORKER == 114
    message = str(caught.value)
    assert "more than 0.02 s: local rank 1: pid " in message
    assert "local rank 0" not in message
    assert message in caplog.messages
    assert "restarted" not in caplog.text


def test_the_launch_ends_without_waiting_for_a_stuck_worker(make):
    """It gets SIGKILL, and not the grace that workers get who can answer."""
    agent = make(STAY, uninterruptible_state_timeout=0.02, shutdown_timeout=600)
    pretend_stuck(agent, 0)
    with pytest.raises(UnkillableWorkerError):
        agent.run()
    worker = agent._workers.context._outcomes.workers[0]
    wait_until(lambda: worker.poll() == -signal.SIGKILL, "its end")


def test_an_error_that_tears_the_loop_down_does_not_hide_it(make, monkeypatch):
    agent = make(SLEEP)
    stuck = UnkillableWorkerError("pid 7 sleeps")

    def fail(group):
        agent._workers._unkillable = stuck
        raise KeyboardInterrupt

    monkeypatch.setattr(agent, "_monitor_workers", fail)
    with pytest.raises(UnkillableWorkerError) as caught:
        agent.run()
    assert caught.value is stuck
    assert isinstance(caught.value.__cause__, KeyboardInterrupt)


def test_the_variable_sets_the_time(make, monkeypatch):
    monkeypatch.setenv(TIMEOUT_VARIABLE, "0.5")
    assert make(SLEEP)._workers.sleep_watch.timeout == 0.5
    assert make(SLEEP, uninterruptible_state_timeout=7)._workers.sleep_watch.timeout == 7
    assert make(SLEEP, uninterruptible_state_timeout=0)._workers.sleep_watch is None
    monkeypatch.setenv(TIMEOUT_VARIABLE, "soon")
    with pytest.raises(UsageError, match=f"variable {TIMEOUT_VARIABLE} is 'soon'"):
        make(SLEEP)


def test_workers_in_an_interruptible_sleep_are_not_stuck(make):
    code = "import time; time.sleep(0.2)"
    agent = make(code, nproc=2, uninterruptible_state_timeout=0.02)
    assert not agent.run().is_failed()


# --- suspended workers ----------------------------------------------------------------------------


STOPS = UP + "up()\nif rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\n"
LONG = 9.0  # seconds, of which the agent's own looks need five to seven


@pytest.mark.slow
def test_a_held_worker_is_noticed_before_the_first_query(tmp_path):
    with FakeElasticRendezvous(world_size=1) as handler:
        node = Node(tmp_path, handler)
        agent = node.agent(STOPS)
        seen = []

        def ask():
            (pid,) = (worker["pid"] for worker in node.workers("0.0.1"))
            wait_until(lambda: read_state(pid) == "T", "it is suspended")
            time.sleep(LONG)
            asked = time.time()
            seen.append((asked, pid, agent.held()))
            os.kill(pid, signal.SIGCONT)

        with meanwhile(ask):
            assert agent.run().state is WorkerState.SUCCEEDED
    ((asked, pid, held),) = seen
    assert [*held] == [1]
    assert (held[1].how, held[1].pid) == ("suspended", pid)
    assert asked - LONG - 1 <= held[1].since < asked - 1


def test_a_hold_that_an_extension_has_noted_is_that_of_its_process(tmp_path):
    with FakeElasticRendezvous(world_size=1) as handler:
        node = Node(tmp_path, handler)
        agent = node.agent(f"{STOPS}else: time.sleep(300)\n", max_restarts=0)
        seen = []

        def ask():
            node.wait_for("0.0.0", "0.0.1")
            wait_until(lambda: len(agent.snapshot().pids) == 2, "the start of both")
            pids = {n: node.workers(f"0.0.{n}")[0]["pid"] for n in (0, 1)}
            wait_until(lambda: read_state(pids[1]) == "T", "it is suspended")
            old = Held("at a prompt of ipdb", 2e9, 1)  # of an earlier round
            noted = {n: Held("at a prompt of pdb", 1e9, pid) for n, pid in pids.items()}
            for holds in (noted, {0: old}, {}):
                agent.note_holds(holds)
                seen.append({rank: held.how for rank, held in agent.held().items()})
            os.kill(pids[1], signal.SIGCONT)
            os.kill(pids[0], signal.SIGKILL)

        with meanwhile(ask):
            assert agent.run().state is WorkerState.FAILED
    assert seen == [{0: "at a prompt of pdb", 1: "suspended"}, {1: "suspended"}, {1: "suspended"}]


# --- hangs that end a round -----------------------------------------------------------------------


TEXT = "no worker has moved for 9 s: rank 1 load (train.py:6)\nrank 0 step (train.py:9)"
BOTH = ("0.0.0", "0.0.1")


class Policy:
    """Restarts, and keeps the failures."""

    def __init__(self):
        self.asked = []

    def decide(self, failure, history):
        self.asked.append(failure)
        return Decision(RestartAction.RESTART, reason="once more")


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path, FakeRendezvous())


@pytest.fixture
def run():
    """Run an agent, and report a hang once its workers are up; it and its result."""

    def call(node, script, rank=1, *, is_final=False, **options):
        agent = node.agent(script, **options)

        def report():
            node.wait_for(*BOTH)
            agent.report_hang(rank, TEXT, is_final=is_final)

        with meanwhile(report):
            return agent.run()

    return call


def test_it_is_a_failure_of_that_cause(node, run, caplog):
    policy = Policy()
    result = run(node, WAIT_IN_ROUND_0, max_restarts=0, restart_policy=policy)
    assert result.state is WorkerState.SUCCEEDED
    assert node.starts() == ["0.0.0", "0.0.1", "1.1.0", "1.1.1"]
    (failure,) = policy.asked
    assert (failure.cause, failure.rank, failure.exitcode) == (Cause.HANG, 1, 116)
    assert failure.message == TEXT.partition("\n")[0]
    assert f"{failure.message}; once more" in caplog.text


def test_without_a_restart_the_report_has_the_stacks(node, run):
    result = run(node, WAIT, max_restarts=0)
    assert (result.state, list(result.failures), result.stopped) == (
        WorkerState.FAILED,
        [1],
        {0: -15},
    )
    error = ChildFailedError("train.py", result.failures)
    assert error.exit_code == 116
    assert "rank 1 on " in str(error)
    assert "  ended:      stopped, because the job hung\n" in str(error)
    where = "".join(f"    {line}\n" for line in TEXT.splitlines())
    assert f"  where the workers were:\n{where}" in str(error)


def test_the_policy_is_not_called_for_a_final_hang(node, run):
    policy = Policy()
    result = run(node, WAIT, is_final=True, max_restarts=3, restart_policy=policy)
    assert result.state is WorkerState.FAILED
    assert not policy.asked
    assert node.starts() == list(BOTH)


@pytest.mark.parametrize("is_final", [False, True])
def test_a_hang_is_reported_to_the_job(tmp_path, run, is_final):
    handler = FakeJobRendezvous(local_world_size=2, max_restarts=0)
    run(Node(tmp_path, handler), WAIT, is_final=is_final)
    ((failures, was_final),) = handler.reported
    assert (list(failures), failures[1].hung, was_final) == ([1], True, is_final)
    handler.shutdown()


ENDS = UP + "up()\nif rank == 0: sys.exit(0)\ntime.sleep(300)\n"


def test_a_worker_that_has_ended_cannot_hang(node):
    agent = node.agent(ENDS, max_restarts=0)

    def report():
        node.wait_for(*BOTH)
        wait_until(lambda: 1 in agent.snapshot().pids, "the start of both")
        for rank in (0, 7):
            wait_until(lambda rank=rank: rank not in agent.snapshot().pids, "its end")
            agent.report_hang(rank, TEXT)
        agent.report_hang(1, TEXT)

    with meanwhile(report):
        assert list(agent.run().failures) == [1]


def test_the_next_round_has_no_hang(node):
    agent = node.agent(WAIT_IN_ROUND_0 + "\nif round_ == 1: sys.exit(3)", max_restarts=1)

    def report():
        node.wait_for(*BOTH)
        agent.report_hang(1, TEXT)

    with meanwhile(report):
        result = agent.run()
    assert {failure.exitcode for failure in result.failures.values()} == {3}


# --- workers that have raised an exception and do not exit ----------------------------------------


CRASH = [
    "Traceback (most recent call last):",
    '  File "/home/me/train.py", line 7, in main',
    "RuntimeError: bad batch",
]


@pytest.fixture
def end(node):
    """Run an agent, and end it once its rank 1 has raised an exception; it and its result."""

    def call(act, script=WAIT, **options):
        agent = node.agent(script, **options)

        def act_then():
            node.wait_for(*BOTH)
            wait_until(lambda: 1 in agent.snapshot().pids, "the start of both")
            agent._workers.context._outcomes.note_raised(1, time.time() - 5, CRASH)
            act(agent)

        with meanwhile(act_then):
            return agent.run()

    return call


ENDS_OF_JOB = {
    "Ctrl-C": lambda agent: os.kill(os.getpid(), signal.SIGINT),
    "SIGTERM": lambda agent: os.kill(os.getpid(), signal.SIGTERM),
    "a hang": lambda agent: agent.report_hang(0, TEXT, is_final=True),
    "plaunchctl stop": lambda agent: agent.request(RequestKind.STOP, "enough", "plaunchctl"),
    "another failure": lambda agent: os.kill(agent.snapshot().pids[0], signal.SIGKILL),
}


@pytest.mark.parametrize("name", ENDS_OF_JOB)
def test_an_exception_is_the_first_failure_whatever_ends_the_job(end, name):
    result = end(ENDS_OF_JOB[name], max_restarts=0)
    assert result.state is WorkerState.FAILED
    error = result.error("train.py")
    assert error.exit_code == 1
    (rank, failure) = error.get_first_failure()
    assert (rank, failure.exitcode, failure.hung) == (1, 1, False)
    assert failure.headline == "RuntimeError: bad batch (train.py:7)"


def test_a_signal_ends_a_job_that_would_be_restarted_and_the_failure_is_logged(end, caplog):
    with pytest.raises(SignalException) as caught:
        end(ENDS_OF_JOB["SIGTERM"], max_restarts=1)
    assert caught.value.sigval is signal.SIGTERM
    assert "failed: RuntimeError: bad batch (train.py:7)" in caplog.text


def test_a_hang_restarts_them_as_a_failure(end, node):
    policy = Policy()
    result = end(ENDS_OF_JOB["a hang"], WAIT_IN_ROUND_0, restart_policy=policy, max_restarts=0)
    assert result.state is WorkerState.SUCCEEDED
    assert [(failure.rank, failure.exitcode) for failure in policy.asked] == [(1, 1)]


def test_the_first_ctrl_c_leaves_other_workers_their_grace(end, node):
    """They save, although the stop began with the failure."""

    def interrupt(agent):
        os.kill(os.getpid(), signal.SIGINT)
        node.wait_for("asked.0")
        time.sleep(0.3)  # a SIGKILL would have come by now
        node.touch("enough")

    result = end(interrupt, SAVING, max_restarts=0)
    assert result.state is WorkerState.FAILED
    assert node.has("saved.0")


# --- what is due ----------------------------------------------------------------------------------


def test_late_exits_are_due_with_the_rest(node):
    workers = node.agent(WAIT)._workers
    assert workers.due() == workers.reaper.period  # before the first start
    late_exits = SimpleNamespace(due=lambda: 0.25)
    workers.context = SimpleNamespace(late_exits=late_exits, exit_fds=lambda: [0])
    assert workers.due() == 0.25
    late_exits.due = lambda: None
    assert workers.due() == workers.reaper.period
    workers.context = None
