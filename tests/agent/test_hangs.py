"""Rounds that end because somebody has found that their workers hang, with real workers."""

from __future__ import annotations

import pytest
from plaunch.agent import WorkerState
from plaunch.process import ChildFailedError
from plaunch.restarts import Cause, Decision, RestartAction
from plaunch.testing import FakeJobRendezvous
from plaunch.testing.rendezvous import FakeRendezvous

from helpers.agents import UP, WAIT, WAIT_IN_ROUND_0, Node
from helpers.calls import meanwhile
from helpers.waiting import wait_until

TEXT = "no worker has moved for 9 s: rank 1 load (train.py:6)\nrank 0 step (train.py:9)"
BOTH = ("0.0.0", "0.0.1")


class Policy:
    """Restarts, and keeps what it was asked."""

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
    assert f"{failure.message}; restart (once more)" in caplog.text


def test_without_a_restart_the_report_says_where_they_were(node, run):
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


def test_if_it_is_final_no_policy_is_asked(node, run):
    policy = Policy()
    result = run(node, WAIT, is_final=True, max_restarts=3, restart_policy=policy)
    assert result.state is WorkerState.FAILED
    assert not policy.asked
    assert node.starts() == list(BOTH)


@pytest.mark.parametrize("is_final", [False, True])
def test_the_others_are_told(tmp_path, run, is_final):
    handler = FakeJobRendezvous(local_world_size=2, max_restarts=0)
    run(Node(tmp_path, handler), WAIT, is_final=is_final)
    ((failures, was_final),) = handler.reported
    assert (list(failures), failures[1].hung, was_final) == ([1], True, is_final)
    handler.shutdown()


ENDS = UP + "up()\nif rank == 0: sys.exit(0)\ntime.sleep(300)\n"


def test_who_has_ended_cannot_hang(node):
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


def test_the_next_round_knows_nothing_of_it(node):
    agent = node.agent(WAIT_IN_ROUND_0 + "\nif round_ == 1: sys.exit(3)", max_restarts=1)

    def report():
        node.wait_for(*BOTH)
        agent.report_hang(1, TEXT)

    with meanwhile(report):
        result = agent.run()
    assert {failure.exitcode for failure in result.failures.values()} == {3}
