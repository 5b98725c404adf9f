"""A place belongs to one round of one incarnation; earlier places are not claims.

In simulated time, as in `test_membership.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from plaunch_membership import transitions
from plaunch_membership.failures import JobFailure
from plaunch_membership.keys import Keys
from plaunch_membership.operations import CompareSet, Sleep
from plaunch_membership.state import JobEventKind, JobPhase
from plaunch_membership.watcher import WatcherRoutine

from .conftest import RUN_ID


def enter_job(membership, keys, state):
    """Enter another incarnation, as the writer does when it has found one."""
    record = membership.codec.encode(keys.state(state.version), state.to_record())
    membership.enter_job(keys, state, job_record=b"record", state_record=record)


def test_a_returning_node_does_not_take_its_rank_from_another(settled):
    job, (stays, returns) = settled(2)
    returns.is_paused = True
    works = job.add()
    assert job.settle(stays, works) == [0, 1]
    returns.is_paused = False
    job.run(10.0)
    assert returns.place is None
    assert returns.membership.part.joined[0] == stays.state.next_round  # with the first ticket
    works.fail()
    assert job.settle(stays, works) == [0, 1]
    assert returns.place is None


def test_a_rank_of_an_outdated_round_is_not_a_claim(settled):
    """Two of three nodes have continued; the third has a rank that one of them has got since."""
    job, nodes = settled(3, min_nodes=1)
    first, second, third = nodes
    first.is_paused = True
    job.settle(second, third, seconds=20.0)
    assert second.place.rank == 1
    assert third.place.rank == 0
    first.is_paused = False
    job.settle(*nodes)
    assert [node.place.rank for node in nodes] == [2, 1, 0]


def test_ranks_survive_the_loss_of_the_store(settled):
    """They are then wishes, not claims against other nodes."""
    job, nodes = settled(3)
    job.board.wipe()
    nodes[0].is_slow_until = job.now + 5.0
    job.run(3.0)
    assert job.settle(*nodes) == [0, 1, 2]


def test_after_a_loss_of_the_store_the_claims_of_the_last_round_count(settled):
    job, (stays, returns) = settled(2, join_timeout=1e6)
    returns.is_paused = True
    works = job.add()
    assert job.settle(stays, works) == [0, 1]
    job.board.wipe()
    for node in (stays, works):
        node.is_slow_until = job.now + 20.0
    returns.is_paused = False
    job.run(15.0)
    assert len({node.incarnation for node in job.living}) == 1
    assert job.settle(stays, works) == [0, 1]
    assert returns.place is None


def test_a_place_of_another_incarnation_does_not_count(settled):
    """A spare that had rank 1 in an earlier incarnation ends no round when it leaves."""
    job, (stays, spare) = settled(2)
    newcomer = job.add(host="new")
    job.board.wipe()
    spare.is_slow_until = job.now + 20.0
    job.settle(stays, newcomer)
    job.run(30.0)
    assert spare.place is None
    assert spare.state.phase is JobPhase.RUNNING
    assert newcomer.membership.is_member(newcomer.state)
    assert not spare.membership.is_member(spare.state)
    assert spare.membership.part.place is None
    kinds_before = [node.kinds for node in (stays, newcomer)]
    spare.agent.leave("SIGTERM received")
    job.run(20.0)
    assert spare.has_ended
    assert [node.kinds for node in (stays, newcomer)] == kinds_before
    assert {node.state.phase for node in (stays, newcomer)} == {JobPhase.RUNNING}


def test_a_node_that_was_left_out_ends_no_round_when_it_leaves(settled):
    """It leaves a round that is over; the others are in the next one."""
    job, (stays, goes) = settled(2)
    spare = job.add()
    goes.is_paused = True
    job.settle(stays, spare)
    kinds_before = [node.kinds for node in (stays, spare)]
    goes.tasks["watcher"].wakes_at = job.now + 1e6  # it reads nothing before it has left
    del goes.tasks["watcher"]
    goes.is_paused = False
    goes.agent.leave("SIGTERM received")
    job.run(20.0)
    assert goes.has_ended
    assert [node.kinds for node in (stays, spare)] == kinds_before
    assert stays.state.phase is JobPhase.RUNNING


@pytest.mark.parametrize("what", ["report", "succeed"])
def test_a_report_counts_only_in_its_incarnation(settled, what):
    """The agent has reported it, and the store is replaced before it can be written."""
    job, (late, stays) = settled(2, min_nodes=1, last_call_timeout=1.0)
    writer = late.tasks.pop("writer")
    job.board.wipe()
    job.settle(stays)
    if what == "report":
        late.agent.report([JobFailure(1, 5.0, "rank 1 failed")], is_final=False)
    else:
        late.agent.succeed()
    late.membership.lose_job("the store has forgotten the job")
    enter_job(late.membership, stays.membership.keys, stays.state)
    late.tasks["writer"] = writer
    job.run(0.5)
    assert {state.event.kind for state in job.states} <= {
        "created",
        "recalled",
        "formed",
        "arrived",
    }
    log = {"report": stays.membership.keys.settled, "succeed": stays.membership.keys.done}[what]
    assert job.store.add(f"{log(stays.state.round)}/tickets", 0) == 0


@pytest.mark.parametrize("kind", [JobEventKind.ARRIVED, JobEventKind.REPLACED])
def test_a_state_of_another_incarnation_is_not_entered(settled, kind):
    """It was read while the node entered another incarnation."""
    _, (node,) = settled(1, max_nodes=2)
    membership = node.membership
    following = WatcherRoutine(membership).watch()
    key = following.send(None).key
    old = membership.state
    if kind is JobEventKind.ARRIVED:
        new = transitions.end_round(old, kind, "h9~9", "", by="h9~9#1", from_round=old.round)
    else:
        new = transitions.replace_job(old, "all are gone", by=node.name)
    record = membership.codec.encode(key, new.to_record())
    enter_job(membership, Keys(RUN_ID, "another"), transitions.first_state(node.name))
    with pytest.raises(StopIteration):
        following.send(record)
    assert membership.state.version == 0
    assert not membership.must_reopen
    assert membership.past == set()


def test_a_change_for_another_incarnation_is_dropped(settled):
    """For example by a leader's routine that has not been stopped yet."""
    _, (node,) = settled(1, max_nodes=2)
    membership = node.membership
    enter_job(membership, Keys(RUN_ID, "another"), transitions.first_state(node.name))
    changing = membership.change(
        lambda state: transitions.replace_job(state, "all are gone", by=node.name),
        membership.job.incarnation - 1,
    )
    assert next(changing, "nothing") == "nothing"


def lose_once(membership):
    """Let a change lose against another node's; return the next operation."""
    changing = membership.change(
        lambda state: transitions.replace_job(state, "all are gone", by=membership.me),
    )
    first = changing.send(None)
    other = transitions.end_round(
        membership.state, JobEventKind.ARRIVED, "h9~9", "", by="h9~9", from_round=0
    )
    return changing.send(membership.codec.encode(first.key, other.to_record()))


@pytest.mark.parametrize(("interval", "longest"), [(60.0, 7.0), (0.5, 0.5)])
def test_a_lost_change_backs_off_randomly(settled, interval, longest):
    _, (node,) = settled(1, max_nodes=2)
    membership = node.membership
    membership.timing = replace(
        membership.timing, cas_backoff_max_seconds=7.0, keep_alive_interval=interval
    )
    pauses = [lose_once(membership) for _ in range(20)]
    assert all(isinstance(pause, Sleep) and 0 <= pause.seconds <= longest for pause in pauses)
    assert len({pause.seconds for pause in pauses}) > 1


def test_a_lost_change_is_retried_at_once_by_default(settled):
    _, (node,) = settled(1, max_nodes=2)
    assert isinstance(lose_once(node.membership), CompareSet)


def test_a_gathering_leader_notices_that_the_store_lost_the_arrivals(simulate):
    """It would form a round of a job that no other node can find."""
    job = simulate(min_nodes=2, max_nodes=3, last_call_timeout=3.5)
    nodes = [job.add(), job.add()]
    job.run(3.2)
    before = nodes[0].membership.keys
    job.board.wipe()
    assert sorted(job.settle(*nodes)) == [0, 1]
    assert [node.error for node in nodes] == [None, None]
    assert before.slot(0, 0, 1) not in job.board.data


def test_a_node_that_was_away_starts_no_round_that_is_over(simulate):
    """It has joined, and is suspended until the others have continued without it."""
    job = simulate(min_nodes=2, max_nodes=3)
    first, away, second = job.add(), job.add(), job.add(is_alone=False)
    away.is_paused = True
    job.settle(first, second)
    assert first.place.round == 1
    away.is_paused = False
    job.settle(first, second, away)
    assert [place.round for _, place in away.places] == [first.place.round]


@pytest.mark.parametrize("absence_is_loss", [False, True])
def test_the_next_leader_gives_no_place_to_nodes_that_died_before(simulate, absence_is_loss):
    job = simulate(min_nodes=3, max_nodes=3, absence_is_loss=absence_is_loss)
    for node in (job.add(), job.add()):
        job.kill(node)
        if absence_is_loss:
            job.store.delete(node.membership.keys.beat(node.name))
    living = [job.add(), job.add()]
    job.run(30.0)
    assert [state.event.kind.value for state in job.states if state.world] == []
    living.append(job.add())
    job.settle(*living)
    assert {node.place.round for node in living} == {0}


def test_the_next_leader_does_not_wait_for_those_that_are_alive(simulate):
    job = simulate(min_nodes=3, max_nodes=3)
    leader, *others = job.add(), job.add()
    leader.agent.leave("was stopped")
    job.run(1.0)
    job.kill(leader)
    began = job.now
    job.settle(*others, job.add(), job.add())
    assert job.now - began <= 3.0
