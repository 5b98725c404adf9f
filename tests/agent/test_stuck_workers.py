"""An agent whose worker sleeps uninterruptibly in the kernel, as the process table says."""

from __future__ import annotations

import signal

import pytest
from plaunch.errors import ExitCode, UnkillableWorkerError, UsageError
from plaunch.process.watches import TIMEOUT_VARIABLE, UninterruptibleWatch
from plaunch.testing.rendezvous import FakeRendezvous

from helpers.agents import Node, and_then
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


def test_nobody_waits_for_it(make):
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


def test_workers_that_sleep_as_everybody_does_are_left_alone(make):
    code = "import time; time.sleep(0.2)"
    agent = make(code, nproc=2, uninterruptible_state_timeout=0.02)
    assert not agent.run().is_failed()
