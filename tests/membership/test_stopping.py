"""No round begins while workers of the last one run on a node that leaves.

In simulated time, as in `test_membership.py`.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plaunch.durations import LONGEST
from plaunch.restarts import Decision, RestartAction
from plaunch_membership.arrivals import Arrivals

from .conftest import Simulation

GRACE = 45.0  # seconds that a node may need to stop its workers
SIGTERM = "SIGTERM received"


class Excluding:
    """Restarts without some hosts."""

    def __init__(self, *hosts):
        self._hosts = hosts

    def decide(self, failure, history):
        return Decision(RestartAction.RESTART, "it hurts", without=self._hosts)


@pytest.fixture
def start(simulate):
    """Start a job whose nodes may need `GRACE` seconds to stop their workers."""

    def start(count=2, *, stop_timeout=GRACE, restart_policy=None, **timing):
        job = simulate(min_nodes=1, max_nodes=count, **timing)
        for number in range(count):
            job.add(host=f"node{number}", stop_timeout=stop_timeout, restart_policy=restart_policy)
        job.settle()
        return job, list(job.nodes)

    return start


def rounds(*nodes):
    return [None if node.place is None else node.place.round for node in nodes]


def test_the_next_round_waits_for_the_workers_of_a_node_that_leaves(start):
    job, (stays, leaves) = start()
    leaves.agent.announce_leave(SIGTERM)
    job.run(GRACE - 10.0)
    assert [change.reason for change in stays.received] == [SIGTERM]
    assert rounds(stays) == [None]
    leaves.agent.leave("its workers have ended")
    before = job.now
    job.settle(stays)
    assert job.now == before  # the record wakes the leader


@pytest.mark.parametrize("which", [0, 1])
def test_it_is_awaited_whoever_leads(start, which):
    job, nodes = start(3)
    leaves = nodes.pop(which)
    leaves.agent.announce_leave(SIGTERM)
    job.run(10.0)
    assert rounds(*nodes) == [None, None]
    job.kill(job.leader)
    (last,) = (node for node in nodes if not node.is_dead)
    job.run(10.0)
    assert rounds(last) == [None]
    leaves.agent.leave("its workers have ended")
    job.settle(last)


def test_it_is_not_awaited_beyond_its_deadline(start, caplog):
    job, (stays, leaves) = start()
    leaves.agent.announce_leave(SIGTERM)
    left = job.now
    job.settle(stays, seconds=2 * GRACE)
    assert GRACE <= job.now - left <= GRACE + 1.0
    assert (
        "node node1 leaves job 'simulated' and has not reported within 45 s that its workers have "
        "ended; round 1 begins nevertheless"
    ) in caplog.text


def test_without_a_limit_it_has_the_time_to_join(start):
    job, (stays, leaves) = start(stop_timeout=LONGEST, join_timeout=300.0)
    leaves.agent.announce_leave(SIGTERM)
    left = job.now
    job.settle(stays, seconds=1000.0)
    assert 300.0 <= job.now - left <= 301.0


def test_a_node_that_is_lost_while_it_stops_is_not_awaited(start):
    job, (stays, leaves) = start()
    leaves.agent.announce_leave(SIGTERM)
    job.run(1.0)
    job.kill(leaves)
    job.settle(stays, seconds=10.0)


def test_a_node_without_workers_is_not_awaited(start):
    job, nodes = start(3)
    nodes[2].is_slow_until = job.now + 20.0
    nodes[0].fail()
    job.run(5.0)  # the other has joined the next round
    nodes[1].agent.leave(SIGTERM)
    job.run(1.0)
    nodes[2].is_slow_until = 0.0
    job.settle(nodes[0], nodes[2], seconds=1.0)


def test_a_node_that_has_succeeded_and_left_is_not_awaited(start):
    job, (stays, leaves) = start()
    leaves.agent.succeed()
    job.run(5.0)
    leaves.agent.leave("has waited long enough")
    job.run(5.0)
    stays.fail()
    job.settle(stays, seconds=1.0)


@pytest.mark.parametrize("does_leave", [True, False], ids=["leaves", "hosts the store"])
def test_an_excluded_node_is_awaited(start, does_leave):
    """Also if it stays, because it hosts the store."""
    job, (stays, excluded) = start(restart_policy=Excluding("node1"))
    if not does_leave:
        excluded.agent.leave = lambda reason: None
    excluded.is_slow_until = job.now + 30.0
    stays.fail()
    job.run(29.0)
    assert rounds(stays) == [None]
    job.settle(stays, seconds=2.0)
    assert not excluded.is_dead


def test_an_excluded_node_is_not_awaited_beyond_its_deadline(start):
    job, (stays, excluded) = start(restart_policy=Excluding("node1"))
    excluded.is_slow_until = job.now + 1000.0
    stays.fail()
    began = job.now
    job.settle(stays, seconds=2 * GRACE)
    assert GRACE <= job.now - began <= GRACE + 2.0


def test_a_job_does_not_start_again_while_its_last_node_stops(simulate):
    job = simulate(min_nodes=1, max_nodes=1)
    leaves = job.add(stop_timeout=GRACE)
    job.settle(leaves)
    spare = job.add()
    leaves.agent.announce_leave(SIGTERM)
    job.run(20.0)
    assert spare.place is None
    leaves.agent.leave("its workers have ended")
    job.settle(spare, seconds=2.0)


@pytest.mark.parametrize("is_excluded", [False, True])
def test_the_wait_message_names_it_and_the_time_left(start, is_excluded):
    job, (first, second, leaves) = start(3, restart_policy=Excluding("node2"))
    if is_excluded:
        leaves.is_slow_until = job.now + 100.0
        first.fail()
    else:
        leaves.agent.announce_leave(SIGTERM)
    job.run(5.0)
    for node in (first, second):
        arrivals = Arrivals(node.membership)
        arrivals.find()
        job.run(0.1)
        text = arrivals.describe()
        assert "node2 (index 2) is still stopping its workers, for at most" in text, text
        assert node.membership.peers.are_stopping(job.now)
    leaves.agent.leave("its workers have ended")
    job.settle(first, second)
    assert not first.membership.peers.are_stopping(job.now)


def test_a_record_without_the_field_is_that_of_a_node_that_joins(start):
    """Nodes of an older version write no such records, and log and ignore those of others."""
    job, (stays, leaves) = start()
    leaves.agent.leave(SIGTERM)
    job.settle(stays)
    assert stays.membership.peers.stopped == {leaves.name}


ACCIDENTS = st.lists(
    st.tuples(
        st.sampled_from(("arrive", "stop", "end", "fail", "slowly", "kill")),
        st.integers(0, 7),
        st.integers(0, 60),
    ),
    max_size=20,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=ACCIDENTS,
    seed=st.integers(0, 1 << 32),
    hosts=st.sets(st.sampled_from(("h0", "h1", "h2"))),
)
def test_workers_of_two_rounds_never_run_at_once(steps, seed, hosts):
    """Whatever the nodes do, as long as none is suspended or exceeds its time."""
    order = random.Random(seed)
    job = Simulation(order.randrange, min_nodes=1, max_nodes=4, max_restarts=9)
    job.restart_policy = Excluding(*hosts)
    for number in range(3):
        job.add(host=f"h{number}", is_alone=False, stop_timeout=1e6)
    stopping = {}  # the rounds of nodes that leave and whose workers run, by node

    def check():
        newest = max((place for node in job.living for place in node.places), default=None, key=key)
        for node in job.living:
            is_slow = node.must_join and node.places and not node.membership.part.leaving
            running = stopping.get(node.name) or (node.places[-1] if is_slow else None)
            assert running is None or key(running) == key(newest), job.describe()

    def key(place):
        incarnation, round_ = place[0], place[1].round
        return int(incarnation[1:]), round_

    for accident, which, tenths in steps:
        node = job.nodes[which % len(job.nodes)]
        if accident == "arrive" and len(job.nodes) < 8:
            job.add(is_alone=False, stop_timeout=1e6)
        elif accident == "kill":
            job.kill(node)
        elif accident == "slowly":
            node.is_slow_until = job.now + tenths
        elif node.is_dead or node.place is None:
            pass
        elif accident == "stop" and not node.membership.part.leaving:
            stopping[node.name] = node.places[-1]
            node.is_slow_until = 1e9  # it does not join again
            node.agent.announce_leave(SIGTERM)
        elif accident == "fail" and not node.must_join and not node.membership.part.leaving:
            node.fail()
        if accident == "end" and stopping.pop(node.name, None) and not node.is_dead:
            node.agent.leave("its workers have ended")
        end = job.now + tenths / 10
        while job.now < end:
            job.run(0.1)
            check()
