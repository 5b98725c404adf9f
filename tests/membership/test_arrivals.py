"""Nodes that arrive while a round runs join together; in simulated time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from plaunch.rendezvous import JobSettings, RendezvousParameters
from plaunch_membership.arrivals import Arrivals
from plaunch_membership.memory import JobMemory
from plaunch_membership.options import Timing
from plaunch_membership.state import host_of


def rounds(job):
    return [state.round for state in job.states if state.event.kind == "formed"]


@pytest.fixture
def running(simulate):
    """Return a job that runs on one node of a maximum number."""

    def start(max_nodes=10, **timing):
        job = simulate(min_nodes=1, max_nodes=max_nodes, last_call_timeout=30.0, **timing)
        job.settle(job.add())
        return job

    return start


def test_nodes_that_arrive_one_after_the_other_start_the_workers_once(running):
    job = running()
    began = job.now
    for _ in range(7):
        job.run(2.5)
        job.add()
    job.settle(*job.nodes)
    assert rounds(job) == [0, 1]
    assert 32.5 <= job.now - began <= 34.0  # seconds after the first one


def test_a_full_round_starts_without_delay(running):
    job = running(max_nodes=3)
    first, late = job.nodes[0], job.add()
    job.run(5.0)
    assert (first.place.nodes, late.place) == (1, None)
    began = job.now
    job.settle(first, late, job.add())
    assert job.now - began < 1.5


@pytest.mark.parametrize("delay", [0.0, 4.0])
def test_the_delay_is_an_option(running, delay):
    job = running(arrival_delay=delay)
    began = job.now
    first, late = job.nodes[0], job.add()
    assert job.settle(first, late) == [0, 1]
    assert delay <= job.now - began < delay + 1.5
    assert first.kinds == ["arrived"]
    assert first.place.attempt == 0
    assert "arrived" in first.place.reason


def test_a_node_that_has_left_does_not_count(running):
    job = running(max_nodes=3)
    goes = job.add()
    job.run(2.0)
    goes.agent.leave("was stopped")
    job.run(2.0)
    job.add()
    job.run(20.0)
    assert rounds(job) == [0]


def test_the_first_arrival_may_die_while_it_waits(running):
    job = running()
    dies, late = job.add(), job.add()
    job.run(5.0)
    job.kill(dies)
    job.settle(job.nodes[0], late)
    assert rounds(job) == [0, 1]


@pytest.mark.parametrize("why", ["failure", "loss"])
def test_a_waiting_node_is_in_the_next_round_whatever_its_cause(settled, why):
    job, (first, second) = settled(2, min_nodes=1, max_nodes=10, last_call_timeout=30.0)
    late = job.add()
    job.run(5.0)
    began = job.now
    if why == "failure":
        second.fail()
        job.settle(first, second, late)
    else:
        job.kill(second)
        job.settle(first, late)
    assert job.now - began < 10.0


def test_a_round_with_a_finished_node_is_not_ended(running):
    job = running()
    first = job.nodes[0]
    late = job.add()
    job.settle(first, late)
    third = job.add()
    job.run(10.0)
    late.agent.succeed()
    job.run(60.0)
    assert third.place is None
    assert third.error is None
    assert rounds(job) == [0, 1]


def test_a_node_that_returns_before_the_next_check_costs_one_round(running):
    job = running(max_nodes=2)
    first, lost = job.nodes[0], job.add()
    job.settle(first, lost)
    lost.is_paused = True
    job.settle(first)
    lost.is_paused = False
    job.settle(first, lost)
    job.run(20.0)
    assert rounds(job) == [0, 1, 2, 3]


def test_a_node_that_is_left_out_does_not_end_round_after_round(running, caplog):
    job = running(max_nodes=2)
    strange = job.add(is_alone=False)
    encode = strange.membership.codec.encode
    strange.membership.codec.encode = lambda key, record: encode(
        key, {**record, "nproc": 0} if "nproc" in record else record
    )
    job.run(10.5)
    assert "a node's record is rejected" in caplog.text
    assert len(rounds(job)) < 5
    assert job.nodes[0].place is not None


def test_the_delay_defaults_to_the_last_call():
    params = RendezvousParameters("memory", "x", "job", 1, 2, job=JobSettings())
    assert Timing.from_parameters(params).arrival_patience == 30.0
    params.config["last_call_timeout"] = "7"
    assert Timing.from_parameters(params).arrival_patience == 7.0
    params.config["arrival_delay"] = "0"
    assert Timing.from_parameters(params).arrival_patience == 0.0


def has_left_after_success(settled, **options):
    """A job of two nodes, one of which has left after the success of its workers."""
    job, nodes = settled(2, **options)
    (other,) = [node for node in nodes if node is not job.leader]
    other.agent.succeed()
    job.run(1.0)
    other.agent.leave("has waited long enough")
    job.run(60.0)
    return job, job.leader, other


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_node_that_has_left_after_success_is_awaited_as_long_as_a_lost_one(settled, is_lost):
    job, node, other = has_left_after_success(settled, min_nodes=2)
    if is_lost:
        job.board.wipe()
        job.run(5.0)
    assert node.membership.memory.finished == {other.name}
    arrivals, timing = Arrivals(node.membership), node.membership.timing
    silence = timing.keep_alive_interval * timing.keep_alive_max_attempt
    assert arrivals.note_wait(node.membership.clock(), 600.0) == silence
    text = str(arrivals.explain_timeout())
    assert f"within {silence:g} s" in text
    assert f"had ended with success and left: {host_of(other.name)}" in text


def test_a_round_that_does_not_need_it_is_awaited_as_long_as_any(settled):
    _, node, _ = has_left_after_success(settled, min_nodes=1, max_nodes=2)
    assert Arrivals(node.membership).note_wait(node.membership.clock(), 600.0) == 600.0


def test_who_has_finished_is_forgotten_with_the_next_round():
    memory = JobMemory(round=3, nodes=2, finished=frozenset({"a"}))
    state = SimpleNamespace(attempt=0, excluded={})
    memory.note(state, SimpleNamespace(round=3, nodes=2))
    assert memory.finished == {"a"}
    memory.note(state, SimpleNamespace(round=4, nodes=2))
    assert memory.finished == frozenset()
