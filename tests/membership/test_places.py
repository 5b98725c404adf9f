"""A place belongs to one round of one incarnation: what nodes had before is no claim, and no part.

In simulated time, as in `test_membership.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from plaunch_membership import transitions
from plaunch_membership.failures import JobFailure
from plaunch_membership.keys import Keys
from plaunch_membership.operations import CompareSet, Sleep
from plaunch_membership.state import JobPhase
from plaunch_membership.watcher import Watcher

from .conftest import RUN_ID


def begin_anew(ours, keys, state):
    """As the writer does that has found another incarnation, and nothing else."""
    record = ours.codec.encode(keys.state(state.version), state.to_record())
    ours.begin_anew(keys, state, job_record=b"record", state_record=record)


def test_a_node_that_returns_does_not_take_its_rank_from_whoever_works_under_it(settled):
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


def test_a_rank_of_a_round_that_others_have_left_behind_is_no_claim(settled):
    """Of three nodes two have gone on, and the third has a rank that one of them has got since."""
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
    """They are no claim against anybody then, but a wish."""
    job, nodes = settled(3)
    job.board.wipe()
    nodes[0].is_slow_until = job.now + 5.0
    job.run(3.0)
    assert job.settle(*nodes) == [0, 1, 2]


def test_of_two_wishes_after_the_loss_of_the_store_that_of_the_last_round_counts(settled):
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


def test_a_place_of_another_incarnation_is_none(settled):
    """A spare that had rank 1 in a round of the same number before ends nobody's when it leaves."""
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
    told = [node.kinds for node in (stays, newcomer)]
    spare.agent.leave("SIGTERM received")
    job.run(20.0)
    assert spare.has_ended
    assert [node.kinds for node in (stays, newcomer)] == told
    assert {node.state.phase for node in (stays, newcomer)} == {JobPhase.RUNNING}


def test_a_node_that_does_not_know_yet_that_it_is_out_ends_nobodys_round(settled):
    """The round that it leaves is over, and the others are in the next one."""
    job, (stays, goes) = settled(2)
    spare = job.add()
    goes.is_paused = True
    job.settle(stays, spare)
    told = [node.kinds for node in (stays, spare)]
    goes.tasks["watcher"].wakes_at = job.now + 1e6  # it hears of nothing before it has left
    del goes.tasks["watcher"]
    goes.is_paused = False
    goes.agent.leave("SIGTERM received")
    job.run(20.0)
    assert goes.has_ended
    assert [node.kinds for node in (stays, spare)] == told
    assert stays.state.phase is JobPhase.RUNNING


@pytest.mark.parametrize("what", ["report", "succeed"])
def test_what_is_said_of_a_round_is_said_of_that_incarnation(settled, what):
    """The agent has said it, and the store is another one before it can be written."""
    job, (late, stays) = settled(2, min_nodes=1, last_call_timeout=1.0)
    writer = late.tasks.pop("writer")
    job.board.wipe()
    job.settle(stays)
    if what == "report":
        late.agent.report([JobFailure(1, 5.0, "rank 1 failed")], is_final=False)
    else:
        late.agent.succeed()
    late.membership.lose_job("the store has forgotten the job")
    begin_anew(late.membership, stays.membership.keys, stays.state)
    late.tasks["writer"] = writer
    job.run(0.5)
    assert {state.event.kind for state in job.states} <= {"created", "formed", "arrived"}
    log = {"report": stays.membership.keys.settled, "succeed": stays.membership.keys.done}[what]
    assert job.store.add(f"{log(0)}/tickets", 0) == 0


@pytest.mark.parametrize("kind", ["arrived", "replaced"])
def test_a_state_of_another_incarnation_is_not_entered(settled, kind):
    """It was on its way to the routine when its node began anew."""
    _, (node,) = settled(1, max_nodes=2)
    ours = node.membership
    following = Watcher(ours).watch()
    key = following.send(None).key
    old = ours.state
    if kind == "arrived":
        new = transitions.call(old, kind, "h9~9", "", by="h9~9#1", from_round=old.round)
    else:
        new = transitions.replace_job(old, "all are gone", by=node.name)
    record = ours.codec.encode(key, new.to_record())
    begin_anew(ours, Keys(RUN_ID, "another"), transitions.first_state(node.name))
    with pytest.raises(StopIteration):
        following.send(record)
    assert ours.state.version == 0
    assert not ours.must_reopen
    assert ours.past == set()


def test_nothing_is_changed_in_another_incarnation_than_was_meant(settled):
    """By the routine of a leader that has not been stopped yet."""
    _, (node,) = settled(1, max_nodes=2)
    ours = node.membership
    begin_anew(ours, Keys(RUN_ID, "another"), transitions.first_state(node.name))
    changing = ours.change(
        lambda state: transitions.replace_job(state, "all are gone", by=node.name),
        ours.job.incarnation - 1,
    )
    assert next(changing, "nothing") == "nothing"


def lose_once(ours):
    """A change of the state that loses against another node's: what the routine does next."""
    changing = ours.change(
        lambda state: transitions.replace_job(state, "all are gone", by=ours.me),
    )
    first = changing.send(None)
    other = transitions.call(ours.state, "arrived", "h9~9", "", by="h9~9", from_round=0)
    return changing.send(ours.codec.encode(first.key, other.to_record()))


@pytest.mark.parametrize(("interval", "longest"), [(60.0, 7.0), (0.5, 0.5)])
def test_a_change_that_lost_waits_a_random_time(settled, interval, longest):
    _, (node,) = settled(1, max_nodes=2)
    ours = node.membership
    ours.timing = replace(ours.timing, cas_backoff_max_seconds=7.0, keep_alive_interval=interval)
    pauses = [lose_once(ours) for _ in range(20)]
    assert all(isinstance(pause, Sleep) and 0 <= pause.seconds <= longest for pause in pauses)
    assert len({pause.seconds for pause in pauses}) > 1


def test_a_change_that_lost_is_made_again_at_once_by_default(settled):
    _, (node,) = settled(1, max_nodes=2)
    assert isinstance(lose_once(node.membership), CompareSet)


def test_a_leader_that_gathers_notices_that_the_store_has_forgotten_who_came(simulate):
    """What it would write down is the round of a job that nobody finds any more."""
    job = simulate(min_nodes=2, max_nodes=3, last_call_timeout=3.5)
    nodes = [job.add(), job.add()]
    job.run(3.2)
    before = nodes[0].membership.keys
    job.board.wipe()
    assert sorted(job.settle(*nodes)) == [0, 1]
    assert [node.error for node in nodes] == [None, None]
    assert before.slot(0, 0, 1) not in job.board.data
