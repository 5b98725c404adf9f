"""The job's restart policy: the leader calls it with the decisions of all previous leaders."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from plaunch.restarts import Cause
from plaunch_membership.failures import JobFailure, summarize
from plaunch_membership.restarts import FailureContext, RestartDecisions

from helpers.policies import Policy, restart, stop


def test_the_policy_overrides_the_budget(simulate):
    policy = Policy(restart(reason="once more"), stop("that is enough"))
    job = simulate(min_nodes=2, max_nodes=2, max_restarts=0)
    nodes = [job.add(restart_policy=policy) for _ in range(2)]
    job.settle()
    nodes[1].fail()
    job.settle()
    assert nodes[0].state.attempt == 1
    assert nodes[0].state.decision == "once more"
    nodes[0].fail()
    job.have_verdict(nodes)
    assert nodes[1].verdict.no_restart == "that is enough"
    (first, before), (second, history) = policy.asked
    assert (first.rank, first.attempt, before) == (1, 0, ())
    assert (second.rank, second.attempt) == (0, 1)
    assert [(one.failure.rank, one.decision.reason) for one in history] == [(1, "once more")]


def test_the_next_round_waits_for_the_delay(simulate):
    policy = Policy(restart(delay=30.0))
    job = simulate(min_nodes=2, max_nodes=2)
    nodes = [job.add(restart_policy=policy) for _ in range(2)]
    job.settle()
    nodes[0].fail()
    assert not job.run(29.0, job.is_settled)
    job.settle(seconds=5.0)
    assert nodes[0].state.pause == 0.0


def test_another_leader_knows_earlier_decisions(simulate):
    lost = restart(reason="lost", costs=False)
    policy = Policy(restart(reason="one", without=("h7",)), lost, restart(reason="two"))
    job = simulate(min_nodes=2, max_nodes=3)
    nodes = [job.add(restart_policy=policy) for _ in range(3)]
    job.settle()
    nodes[2].fail()
    job.settle()
    job.kill(job.leader)
    job.settle()
    job.run(5.0, lambda: False)  # the workers train
    job.living[0].fail()
    job.settle()
    failure, history = policy.asked[2]
    decisions = [(one.decision.reason, one.decision.without) for one in history]
    assert decisions == [("one", ("h7",)), ("lost", ())]
    assert policy.asked[1][0].started == 1e9  # it joined later
    assert 0.0 < failure.started < 1e9


def test_the_history_is_bounded_to_the_latest_failures(simulate):
    """Also that of a new leader, who reads it from the store."""
    policy = Policy(*[restart()] * 5)
    job = simulate(min_nodes=1, max_nodes=1)
    node = job.add(restart_policy=policy)
    job.settle()

    def decide(decisions, number):
        state = replace(node.state, round=number, attempt=number)
        summary = summarize([JobFailure(0, 5.0, "it failed")])
        routine = decisions.decide(state, summary, FailureContext(1.0, ("h0",)))
        operation = next(routine)
        with contextlib.suppress(StopIteration):
            while True:
                operation = routine.send(operation.run(job.store))
        return [one.failure.attempt for one in policy.asked[-1][1]]

    decisions = RestartDecisions(node.membership, max_history=2)
    assert [decide(decisions, number) for number in range(4)] == [[], [0], [0, 1], [1, 2]]
    assert decide(RestartDecisions(node.membership, max_history=2), 4) == [2, 3]
    assert [one.failure.attempt for one in node.membership.memory.decisions.values()] == [3, 4]


def test_without_a_decision_the_budget_decides(simulate):
    job = simulate(min_nodes=1, max_nodes=1, max_restarts=0)
    node = job.add(restart_policy=Policy(None))
    job.settle()
    node.fail()
    job.have_verdict([node])


# --- nodes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_failed", [False, True])
def test_the_policy_is_called_for_a_lost_node(simulate, has_failed):
    policy = Policy(restart(reason="so what", costs=False))
    job = simulate(min_nodes=2, max_nodes=3, max_restarts=0)
    nodes = [job.add(host=host, restart_policy=policy) for host in ("a", "b", "c")]
    job.settle()
    job.kill(nodes[2])
    if has_failed:  # as a consequence
        nodes[1].fail()
    job.settle(*nodes[:2])
    ((failure, _),) = policy.asked
    assert (failure.cause, failure.host, failure.exitcode) == (Cause.NODE, "c", 137)
    assert failure.message == "node c (index 2) was lost: no heartbeat for 3.0 s"
    assert failure.rank < 0
    assert nodes[0].state.reason == "node c (index 2) was lost: no heartbeat for 3.0 s"
    assert nodes[0].state.attempt == 0


def test_a_restart_after_a_lost_node_may_cost_and_be_delayed(simulate):
    policy = Policy(restart(reason="restart 1 of 1 for node", delay=30.0), stop("enough"))
    job = simulate(min_nodes=1, max_nodes=3, max_restarts=0)
    nodes = [job.add(host=host, restart_policy=policy) for host in ("a", "b", "c")]
    job.settle()
    job.kill(nodes[2])
    assert not job.run(29.0, lambda: job.is_settled(nodes[:2]))
    job.settle(*nodes[:2])
    assert nodes[0].state.attempt == 1
    assert nodes[0].state.decision == "restart 1 of 1 for node"
    job.kill(nodes[1])
    job.have_verdict(nodes[:1])
    verdict = nodes[0].verdict
    assert (verdict.outcome, verdict.no_restart) == ("failed", "enough")
    assert verdict.failures[0].summary == "node b (index 1) was lost: no heartbeat for 3.0 s"


def test_the_policy_is_not_called_for_a_node_that_leaves(simulate):
    job = simulate(min_nodes=1, max_nodes=2, max_restarts=0)
    nodes = [job.add(restart_policy=Policy()) for _ in range(2)]
    job.settle()
    nodes[1].agent.leave("its operator wants it")
    job.settle(nodes[0])


@pytest.mark.parametrize("is_over", [False, True])
def test_the_policy_is_called_once_for_an_unhealthy_node(simulate, is_over):
    policy = Policy(stop("no more") if is_over else restart(costs=False), restart())
    job = simulate(min_nodes=1, max_nodes=2)
    nodes = [job.add(host=host, restart_policy=policy) for host in ("a", "b")]
    job.settle()
    nodes[1].agent.announce_leave("node b is not healthy: disk: full", is_excluded=True)
    nodes[1].agent.leave("")
    if is_over:
        job.have_verdict(nodes[:1])
        assert nodes[0].verdict.no_restart == "no more"
        assert nodes[0].verdict.failures[0].summary == "node b is not healthy: disk: full"
        return
    job.settle(nodes[0])
    nodes[0].fail()
    job.settle(nodes[0])
    assert [failure.cause for failure, _ in policy.asked] == [Cause.HEALTH, Cause.WORKER]
    (known,) = policy.asked[1][1]
    assert (known.failure.cause, known.failure.host) == (Cause.HEALTH, "b")
