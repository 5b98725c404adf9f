"""A store that loses all or the last of its data, and is available again before that is noticed.

No connection breaks in most of these tests: nodes must detect the loss from the data.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from plaunch.rendezvous import JobOutcome
from plaunch_membership.failures import JobFailure
from plaunch_membership.job_lookup import JobLookup
from plaunch_membership.keys import newest_key
from plaunch_membership.state import JobPhase
from plaunch_membership.transitions import notify
from plaunch_membership.watcher import WatcherRoutine

from helpers.policies import Policy, restart

from .conftest import Simulation


def incarnations(nodes):
    return {node.incarnation for node in nodes}


def fail(job, node):
    """Let a worker of one node fail, and wait until all nodes are in a round again."""
    node.fail()
    job.settle()


def check_started_again(job, nodes, before):
    """Check that all nodes are in one new incarnation."""
    job.run(3.0)
    job.settle(*nodes)
    assert len(incarnations(nodes)) == 1
    assert incarnations(nodes) != before


# --- everything is lost ---------------------------------------------------------------------------


@pytest.mark.parametrize(("min_nodes", "max_nodes", "count"), [(1, 2, 2), (2, 2, 2), (2, 4, 3)])
@pytest.mark.parametrize("offset", [0.0, 0.3, 0.6])
def test_all_notice_that_the_store_is_empty(simulate, min_nodes, max_nodes, count, offset):
    job = simulate(min_nodes=min_nodes, max_nodes=max_nodes)
    nodes = []
    for _ in range(count):  # they check at different times
        nodes.append(job.add())
        job.run(0.4)
    job.settle(*nodes)
    job.run(10.0 + offset)
    before = incarnations(nodes)
    job.board.wipe()
    check_started_again(job, nodes, before)
    assert all("lost" in node.kinds for node in nodes)
    assert all("lost" in "".join(change.reason for change in node.received) for node in nodes)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("min_nodes", [1, 2])
def test_the_first_node_that_notices_does_not_leave_the_other_alone(settled, min_nodes, first):
    """One node starts again before the other has checked; the incarnation has changed by then."""
    job, nodes = settled(2, min_nodes=min_nodes, last_call_timeout=0.0)
    job.run(10.0)
    before = incarnations(nodes)
    nodes[1 - first].is_paused = True
    job.board.wipe()
    job.run(2.0)
    nodes[1 - first].is_paused = False
    check_started_again(job, nodes, before)


@pytest.mark.parametrize("shape", [(1, 2), (2, 2), (1, 3), (2, 3), (3, 3)])
@pytest.mark.parametrize("seed", range(12))
def test_nodes_meet_again_whenever_the_loss_happens(simulate, shape, seed):
    """Also while they arrive, form a round, or report failures."""
    order = random.Random(seed)
    min_nodes, max_nodes = shape
    job = simulate(order.randrange, min_nodes=min_nodes, max_nodes=max_nodes, max_restarts=9)
    nodes = [job.add(is_alone=False) for _ in range(max_nodes)]
    for _ in range(3):
        for _ in range(order.randrange(150)):
            job.step()
        if order.random() < 0.5:
            job.run(order.random() * 8)
        one = order.choice(nodes)
        if one.place is not None and order.random() < 0.5:
            one.fail()
            for _ in range(order.randrange(30)):
                job.step()
        job.board.wipe()
    job.run(20.0)
    job.settle(*nodes)
    assert len(incarnations(nodes)) == 1
    assert [node.error for node in nodes] == [None] * max_nodes


def test_a_leaving_node_does_not_start_the_job_again(settled):
    job, (node,) = settled(1)
    node.agent.announce_leave("was stopped")
    job.run(0.1)
    job.board.wipe()
    job.run(5.0)
    node.agent.leave("was stopped")
    job.run(1.0)
    assert node.has_ended
    assert not any(key.endswith("/job") for key in job.board.data)


def test_a_node_deletes_its_old_heartbeat(settled):
    """In a store with leases it would exist as long as the node, and show it as alive there."""
    job, nodes = settled(2)
    old = [node.membership.keys.beat(node.name) for node in nodes]
    job.board.data.pop(next(key for key in job.board.data if key.endswith("/job")))
    job.run(3.0)
    job.settle(*nodes)
    assert [key for key in old if key in job.board.data] == []


def test_states_read_from_an_earlier_incarnation_are_ignored(settled):
    """The watcher has read a state while the writer has started again."""
    job, (node,) = settled(1)
    membership = node.membership
    follow = WatcherRoutine(membership).watch()
    assert next(follow).key == membership.keys.state(membership.state.version + 1)
    following = notify(membership.state, "another", 10)
    value = membership.codec.encode(membership.keys.state(following.version), following.to_record())
    job.board.wipe()
    job.run(3.0)
    present = membership.state
    with pytest.raises(StopIteration):
        follow.send(value)
    assert membership.state is present


# --- the last of it is lost -----------------------------------------------------------------------


@pytest.mark.parametrize(("min_nodes", "max_nodes"), [(1, 2), (2, 2), (1, 3)])
@pytest.mark.parametrize("when", ["arriving", "running", "settling"])
def test_an_older_snapshot_is_not_continued(simulate, min_nodes, max_nodes, when):
    job = simulate(min_nodes=min_nodes, max_nodes=max_nodes, max_restarts=5)
    nodes = [job.add()]
    if when == "arriving":
        older = dict(job.board.data)
    nodes.append(job.add())
    job.settle(*nodes)
    job.run(5.0)
    if when == "running":
        older = dict(job.board.data)
    nodes[0].fail()
    if when == "settling":
        job.run(1.0, lambda: nodes[1].state.phase is JobPhase.SETTLING)
        older = dict(job.board.data)
    job.settle(*nodes)
    job.run(5.0)
    before = incarnations(nodes)
    job.restore(older)
    check_started_again(job, nodes, before)
    assert {node.place.attempt for node in nodes} == {1}


def test_a_snapshot_of_the_previous_job_is_not_continued(settled):
    job, nodes = settled(2)
    job.run(5.0)
    first, older = incarnations(nodes), dict(job.board.data)
    job.board.wipe()
    job.run(5.0)
    job.settle(*nodes)
    second = incarnations(nodes)
    job.restore(older)
    job.run(5.0)
    job.settle(*nodes)
    assert len(first | second | incarnations(nodes)) == 3


def test_the_verdict_of_an_earlier_job_in_a_snapshot_does_not_end_this_one(simulate):
    job = simulate(min_nodes=2, max_nodes=2, verdict_ttl=100.0)
    earlier = [job.add(), job.add()]
    job.settle(*earlier)
    for node in earlier:
        node.agent.succeed()
    job.have_verdict(earlier)
    older = dict(job.board.data)
    for node in earlier:
        node.agent.finish()
    job.run(101.0)
    nodes = [job.add(), job.add()]
    job.settle(*nodes)
    job.run(5.0)
    before = incarnations(nodes)
    job.restore(older)
    check_started_again(job, nodes, before)
    assert [node.verdict for node in nodes] == [None, None]


def test_a_state_written_over_a_gap_is_detected(settled):
    """A node that writes the next state over a gap would lead latecomers to a lost state."""
    job, nodes = settled(2, min_nodes=1, max_nodes=3)
    job.run(5.0)
    older = dict(job.board.data)
    fail(job, nodes[0])
    job.run(5.0)
    job.restore(older)
    nodes[0].agent.send_notice(10)
    while job.step():
        pass
    assert nodes[1].state.event.kind == "notice"  # the others have continued with it
    late = job.add()
    job.run(5.0)
    job.settle(*nodes, late)
    assert len(incarnations([*nodes, late])) == 1


def test_a_job_with_a_healthy_store_does_not_start_again(settled):
    """Whatever happens in the job."""
    job, nodes = settled(2, min_nodes=1, max_nodes=3, max_restarts=50)
    before = incarnations(nodes)
    for _ in range(10):
        fail(job, nodes[0])
        nodes[1].is_paused = True
        job.run(1.7)
        nodes[1].is_paused = False
    nodes.append(job.add())
    job.settle(*nodes)
    nodes[1].is_paused = True
    job.run(20.0)
    nodes[1].is_paused = False
    job.run(5.0)
    job.settle(*nodes)
    assert incarnations(nodes) == before


# --- attempts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("min_nodes", "max_nodes"), [(1, 2), (2, 2), (1, 3)])
def test_a_restarted_host_does_not_reset_the_budget(simulate, min_nodes, max_nodes):
    job = simulate(min_nodes=min_nodes, max_nodes=max_nodes, max_restarts=2)
    host, other = job.add(is_host=True), job.add()
    job.settle(host, other)
    fail(job, other)
    fail(job, host)
    assert other.place.attempt == 2
    job.kill(host)
    job.board.wipe()
    host = job.add(is_host=True)  # the first node hosts the store
    job.run(3.0)
    job.settle(host, other)
    assert [node.place.attempt for node in (host, other)] == [2, 2]
    other.agent.report([JobFailure(0, 5.0, "rank 0 failed")], is_final=False)
    job.run(5.0)
    assert host.verdict.outcome == "failed"


def test_an_attempt_counts_before_its_round_is_formed(simulate):
    job = simulate(min_nodes=2, max_nodes=2, max_restarts=5)
    host, other = job.add(is_host=True), job.add()
    job.settle(host, other)
    other.fail()
    host.is_slow_until = job.now + 60.0  # its workers are not stopped yet
    job.run(5.0, lambda: other.state.attempt == 1)
    assert other.state.phase is JobPhase.FORMING
    job.kill(host)
    job.board.wipe()
    again = job.add(is_host=True)
    job.run(3.0)
    job.settle(again, other)
    assert [node.place.attempt for node in (again, other)] == [1, 1]


# --- invalid states -------------------------------------------------------------------------------


def test_a_state_under_the_key_of_another_is_refused(settled):
    """Without a token any client may copy one; nodes would repeat states forever."""
    job, nodes = settled(2, min_nodes=1, max_restarts=5)
    keys = nodes[0].membership.keys
    fail(job, nodes[0])
    places = [len(node.places) for node in nodes]
    last = nodes[0].state.version
    older = next(state.version for state in job.states if state.event.kind == "formed")
    job.store.set(keys.state(last + 1), job.board.data[keys.state(older)])
    job.run(5.0)
    for node in nodes:
        assert "is invalid" in str(node.error)
        assert keys.state(last + 1) in str(node.error)
    assert [len(node.places) for node in nodes] == places


def test_writers_and_joining_nodes_reject_a_copied_state(settled, caplog):
    job, (node,) = settled(1, max_nodes=2)
    keys, last = node.membership.keys, node.state.version
    present = job.board.data[keys.state(last)]
    hint = f"{keys.incarnation} {last + 1} ".encode() + present
    job.store.set(newest_key(node.membership.identity.run_id), hint)
    late = job.add()
    job.settle(node, late)  # it has read the states one after the other
    assert "a copy of the newest state is rejected" in caplog.text
    last = node.state.version
    node.tasks.pop("watcher")  # a reader would detect it first
    job.store.set(keys.state(last + 1), present)
    node.agent.send_notice(10)
    job.run(5.0)
    assert keys.state(last + 1) in str(node.error)


# --- clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [5.0, 3600.0, 1e8])
def test_a_clock_that_is_behind_does_not_run_a_finished_job_again(settled, seconds):
    job, (first,) = settled(1, verdict_ttl=100.0)
    first.agent.succeed()
    job.run(1.0)
    late = job.refuse("succeeded", "clock", clock_behind=seconds)
    assert late.verdict.outcome == "succeeded"


def test_data_lost_while_a_node_joins_start_no_incarnation_twice():
    """Found at random: the job's key was read before the loss, its states after that."""
    order = random.Random(382)
    job = Simulation(order.randrange, min_nodes=1, max_nodes=1, max_restarts=0)
    job.repeat = lambda: order.randrange(100) < 1
    job.add(is_alone=False)
    for seconds in (8.1, 0.0):
        job.add(is_alone=False)
        job.run(seconds)
    job.kill(job.nodes[0])
    job.run(3.9)
    job.add(is_alone=False)
    job.run(0.0)
    job.board.wipe()
    job.run(60.0)
    formed = Counter((name, place.round) for node in job.nodes for name, place in node.places)
    assert max(formed.values()) == 1


# --- members come back ----------------------------------------------------------------------------


def rounds_of(node):
    return [place.round for _, place in node.places]


@pytest.mark.parametrize("first", [0, 1])
def test_no_round_begins_until_all_members_are_back(simulate, first):
    """Otherwise the one that takes long to stop its workers would cause another round."""
    job = simulate(min_nodes=1, max_nodes=3, last_call_timeout=0.0)
    nodes = [job.add(stop_timeout=60.0) for _ in range(2)]
    job.settle(*nodes)
    job.run(5.0)
    before = nodes[0].place.round
    nodes[first].is_slow_until = job.now + 40.0
    job.board.wipe()
    job.run(35.0)
    assert [node.place for node in nodes] == [None, None]
    job.settle(*nodes)
    job.run(20.0)
    for node in nodes:
        assert rounds_of(node)[-1] == before + 1
        assert rounds_of(node).count(before + 1) == 1


@pytest.mark.parametrize("max_nodes", [3, 4])
@pytest.mark.parametrize("seed", range(16))
def test_the_round_begins_as_soon_as_all_are_back(seed, max_nodes):
    """The leader waits for nothing of the time before it was known that the job was lost.

    Nor for the next node of a round that has room, if the last one has returned and joined between
    two reads of the leader.
    """
    order = random.Random(seed)
    job = Simulation(
        order.randrange,
        min_nodes=3,
        max_nodes=max_nodes,
        absence_is_loss=True,
        keep_alive_interval=50.0,
    )
    nodes = [job.add() for _ in range(3)]
    job.settle(*nodes)
    job.board.wipe()
    for node in nodes:  # as their clients do when the store ends
        node.writer.is_beat_due = True
        node.nudge()
    job.run(0.1)
    job.settle(*nodes, seconds=10.0)


def test_a_member_that_does_not_come_back_delays_the_round_as_long_as_a_lost_one(simulate):
    job = simulate(min_nodes=1, max_nodes=3, last_call_timeout=0.0)
    nodes = [job.add() for _ in range(2)]
    job.settle(*nodes)
    job.run(5.0)
    job.kill(nodes[1])
    job.board.wipe()
    began = job.now
    job.settle(nodes[0])
    timing = nodes[0].membership.timing
    silence = timing.keep_alive_interval * timing.keep_alive_max_attempt
    assert silence <= job.now - began <= silence + 3.0


def test_a_newcomer_does_not_end_the_wait_for_members(simulate):
    job = simulate(min_nodes=1, max_nodes=3, last_call_timeout=0.0)
    nodes = [job.add(stop_timeout=60.0) for _ in range(2)]
    job.settle(*nodes)
    job.run(5.0)
    before = nodes[0].place.round
    for node in nodes:
        node.is_paused = True
    job.board.wipe()
    job.has_lost_data = True
    late = job.add()
    job.run(2.0)
    assert late.place is None
    for node in nodes:
        node.is_paused = False
    job.settle(*nodes, late)
    assert rounds_of(late) == [before + 1]


def test_nodes_that_waited_for_a_place_do_not_complete_the_round_without_members(simulate):
    """Workers of a member that is not back yet may run."""
    job = simulate(min_nodes=2, max_nodes=2, last_call_timeout=0.0)
    nodes = [job.add(), job.add(stop_timeout=60.0)]
    job.settle(*nodes)
    spare = job.add()
    job.run(5.0)
    nodes[1].is_paused = True
    job.board.wipe()
    job.has_lost_data = True
    job.run(2.0)
    assert [nodes[0].place, spare.place] == [None, None]
    nodes[1].is_paused = False
    job.settle(*nodes)
    assert spare.places == []


def test_rounds_and_exclusions_continue(settled):
    job, nodes = settled(2, min_nodes=1, max_restarts=5)
    for _ in range(3):
        fail(job, nodes[0])
    before = nodes[0].place
    for _ in range(2):
        job.board.wipe()
        job.run(5.0)
        job.settle(*nodes)
    assert [node.place.round for node in nodes] == [before.round + 2] * 2
    assert [node.place.attempt for node in nodes] == [before.attempt] * 2
    assert nodes[0].state.former_nodes == 0


@pytest.mark.parametrize("is_new_leader", [False, True])
def test_the_history_of_decisions_is_brought_back(simulate, is_new_leader):
    policy = Policy(restart(reason="one"), restart(reason="two"), restart(reason="three"))
    job = simulate(min_nodes=2, max_nodes=2)
    nodes = [job.add(restart_policy=policy) for _ in range(2)]
    job.settle(*nodes)
    for _ in range(2):
        fail(job, nodes[0])
    former = job.leader
    other = next(node for node in nodes if node is not former)
    # The first one to come back leads.
    last = former if is_new_leader else other
    last.is_paused = True
    job.board.wipe()
    job.run(2.0)
    last.is_paused = False
    job.run(2.0)
    job.settle(*nodes)
    assert job.leader is not last
    fail(job, nodes[0])
    _, history = policy.asked[2]
    assert [one.decision.reason for one in history] == ["one", "two"]


@pytest.mark.parametrize("is_lost_before", [False, True])
@pytest.mark.parametrize("outcome", ["succeeded", "stopped"])
def test_a_job_that_is_over_stays_over(settled, outcome, is_lost_before):
    """A node that has not read the verdict would start it again, or wait for others."""
    job, (host, other) = settled(2, min_nodes=2)
    if outcome == "succeeded":
        other.agent.succeed()
        job.run(1.0)
    other.is_paused = True
    if outcome == "succeeded":
        host.agent.succeed()
    else:
        host.agent.close("it was stopped", JobOutcome.STOPPED)
    job.run(1.0, lambda: host.verdict is not None)
    if is_lost_before:
        job.board.wipe()
    # It may not read that the other one has left, if a late write brought back a lost state.
    host.agent.linger(lambda seconds, _: seconds < 10.0)
    job.run(2.0)
    if not is_lost_before:
        job.board.wipe()
        job.run(2.0)
    other.is_paused = False
    job.have_verdict([other])
    assert other.verdict.outcome == outcome
    assert other.verdict.node == host.membership.identity.host
    assert job.run(20.0, lambda: host.has_ended)
    assert len(other.places) == 1


def test_a_node_that_finds_the_verdict_again_is_not_refused(settled):
    """It looks for the job after another node has brought back how it ended."""
    job, (host, other) = settled(2, min_nodes=2)
    host.agent.close("it was stopped", JobOutcome.STOPPED)
    other.is_paused = True
    job.run(1.0, lambda: host.verdict is not None)
    job.board.wipe()
    host.agent.linger(lambda seconds, _: seconds < 60.0)
    job.run(5.0)
    other.is_paused = False
    job.have_verdict([other])
    assert not other.membership.news.is_past
    assert "start a new job" not in str(other.error)


def test_a_node_that_learned_the_verdict_while_it_looked_for_the_job_brings_it_back(
    settled, caplog
):
    """Its watcher has read it in the incarnation that the store has lost since."""
    job, (host, other) = settled(2, min_nodes=2)
    other.is_paused = True
    host.agent.close("it was stopped", JobOutcome.STOPPED)
    job.run(1.0, lambda: host.verdict is not None)
    job.board.wipe()
    job.kill(host)
    other.membership.news.verdict = host.verdict
    other.is_paused = False
    other.tasks.clear()
    other.begin("lookup", JobLookup(other.membership, lambda: "again").open())
    job.run(1.0)
    assert "this node has brought back how it ended" in caplog.text
    newcomer = job.add()
    assert job.run(5.0, lambda: newcomer.error is not None), job.describe()
    assert "it was stopped" in str(newcomer.error)
