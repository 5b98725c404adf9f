"""Excluded hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plaunch.errors import NodeExcludedError
from plaunch.restarts import Decision, RestartAction
from plaunch_membership.arrivals import Arrivals
from plaunch_membership.records import MAX_EXCLUDED
from plaunch_membership.transitions import exclude

WHY = "two failures have begun there"


class Without:
    """Restarts and excludes the host on which a failure began."""

    def __init__(self, host=None):
        self._host = host

    def decide(self, failure, history):
        without = () if self._host is None else (self._host,)
        return Decision(RestartAction.RESTART, WHY, without=without)


@pytest.fixture
def job(simulate):
    """Three nodes and a spare, whose policy excludes h1 after a failure."""
    job = simulate(min_nodes=2, max_nodes=3)
    for host in ("h0", "h1", "h2"):
        job.add(host=host, restart_policy=Without("h1"))
    job.settle(*job.nodes)
    job.add(host="h3", restart_policy=Without("h1"))
    return job


def check_excluded(node):
    assert isinstance(node.error, NodeExcludedError)
    assert str(node.error) == f"job 'simulated' has excluded node h1: {WHY}"


def test_a_spare_takes_the_place_and_the_others_keep_their_ranks(job):
    a, b, c, spare = job.nodes
    b.fail()
    assert job.settle(a, c, spare) == [0, 2, 1]
    check_excluded(b)
    assert job.nodes[0].state.decision.endswith(WHY)


def test_the_spare_takes_the_place_of_the_only_node(simulate):
    job = simulate(min_nodes=1, max_nodes=1)
    first = job.add(host="h1", restart_policy=Without("h1"))
    job.settle(first)
    spare = job.add(host="h2", restart_policy=Without("h1"))
    job.run(10.0)
    first.fail()
    assert job.settle(spare) == [0]
    check_excluded(first)


def test_a_dead_spare_takes_no_place(simulate):
    job = simulate(min_nodes=1, max_nodes=1)
    first = job.add(host="h1", restart_policy=Without("h1"))
    job.settle(first)
    spare = job.add(host="h2", restart_policy=Without("h1"))
    job.run(10.0)
    job.kill(spare)
    job.run(60.0)
    first.fail()
    assert job.settle(first) == [0]
    assert not first.state.excluded


def test_without_a_spare_fewer_nodes_continue(job):
    a, b, c, spare = job.nodes
    job.kill(spare)
    job.run(30.0)
    a.fail()  # the policy may blame the other one
    assert job.settle(a, c) == [0, 1]
    check_excluded(b)


@pytest.mark.parametrize("has_leader_died", [False, True])
def test_the_next_agent_on_an_excluded_host_is_refused(job, has_leader_died):
    a, b, c, spare = job.nodes
    b.fail()
    job.settle(a, c, spare)
    if has_leader_died:
        job.kill(job.leader)
        job.settle(c, spare, seconds=120.0)
    again = job.add(host="h1")
    job.run(10.0)
    check_excluded(again)
    assert b.kinds == again.kinds == []
    before = job.living[0].state.round
    job.run(30.0)
    assert job.living[0].state.round == before


def test_the_leader_may_be_excluded(simulate):
    job = simulate(min_nodes=1, max_nodes=3)
    nodes = [job.add(restart_policy=Without("h0")) for _ in range(3)]
    job.settle()
    assert job.leader is nodes[0]
    nodes[0].fail()
    job.settle(*nodes[1:])
    assert isinstance(nodes[0].error, NodeExcludedError)
    job.kill(nodes[0])
    job.run(60.0)
    nodes[1].fail()  # there is a leader
    job.settle(*nodes[1:])
    assert nodes[1].state.attempt == 2


def test_too_few_nodes_wait_for_another(simulate):
    job = simulate(min_nodes=2, max_nodes=2)
    a, b = (job.add(host=host, restart_policy=Without("h1")) for host in ("h0", "h1"))
    job.settle()
    a.fail()
    job.run(100.0)
    check_excluded(b)
    assert a.place is None
    arrivals = Arrivals(a.membership)
    assert arrivals.describe() == "2 nodes; excluded: h1"
    other = job.add(host="h7")
    assert job.settle(a, other) == [0, 1]


def test_a_job_with_nodes_on_one_host_only_keeps_them(simulate):
    job = simulate(min_nodes=2, max_nodes=2)
    nodes = [job.add(host="h1", restart_policy=Without("h1")) for _ in range(2)]
    job.settle()
    nodes[0].fail()
    assert job.settle(*nodes) == [0, 1]
    assert nodes[1].state.decision.endswith(f"{WHY}; but the job cannot go on without it")
    assert not nodes[1].state.excluded


def test_a_node_may_exclude_itself(job):
    a, b, c, spare = job.nodes
    b.agent.announce_leave("it is not healthy", is_excluded=True)
    b.agent.leave("it ends")
    assert job.settle(a, c, spare) == [0, 2, 1]
    assert [change.reason for change in a.received] == ["it is not healthy"]
    again = job.add(host="h1")
    job.run(10.0)
    assert str(again.error) == "job 'simulated' has excluded node h1: it is not healthy"


def test_a_node_does_not_exclude_the_host_of_all(simulate):
    job = simulate(min_nodes=1, max_nodes=2)
    nodes = [job.add(host="h1") for _ in range(2)]
    job.settle(*nodes)
    nodes[1].agent.announce_leave("it is not healthy", is_excluded=True)
    nodes[1].agent.leave("it ends")
    job.settle(nodes[0])
    assert not nodes[0].state.excluded


def test_exclusions_survive_the_loss_of_the_store(job):
    a, b, c, spare = job.nodes
    b.fail()
    job.settle(a, c, spare)
    job.board.wipe()
    job.run(3.0)
    again = job.add(host="h1")
    job.settle(a, c, spare)
    check_excluded(again)


def test_excluded_hosts_are_bounded_and_the_latest_stays(job):
    state = job.nodes[0].state
    for number in range(MAX_EXCLUDED + 5):
        state = replace(state, excluded=exclude(state, {f"n{number}": "bad" * 999}))
    assert len(state.excluded) == MAX_EXCLUDED
    assert f"n{MAX_EXCLUDED + 4}" in state.excluded
