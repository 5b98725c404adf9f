"""Records of past rounds are deleted, and no node needs them. In simulated time."""

from __future__ import annotations

import re

import pytest


def of_rounds(job):
    """Return the keys of rounds, by number."""
    found = {}
    for key in job.board.data:
        match = re.search(r"/round/(\d+)/", key)
        if match:
            found.setdefault(int(match[1]), []).append(key)
    return found


def restart(job, *nodes, times=1):
    """Form another round, as after the failure of a worker."""
    for _ in range(times):
        nodes[-1].fail()
        job.settle(*nodes)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_only_the_last_two_rounds_have_keys(settled, count):
    job, nodes = settled(count, max_restarts=100)
    sizes = set()
    for _ in range(8):
        restart(job, *nodes)
        job.run(5.0)
        last = nodes[0].state.round
        assert set(of_rounds(job)) <= {last - 1, last, last + 1}
        sizes.add(sum(map(len, of_rounds(job).values())))
    assert len(sizes) <= 2  # the first round has no predecessor


def test_many_keys_are_deleted_in_batches(settled):
    """Each batch is short, because the leader must detect lost nodes."""
    job, nodes = settled(120, max_restarts=100)
    restart(job, *nodes, times=3)
    job.run(10.0)
    assert set(of_rounds(job)) <= {2, 3, 4}


def test_rounds_of_previous_leaders_are_deleted_too(settled):
    job, nodes = settled(4, max_restarts=100, min_nodes=1)
    for _ in range(3):
        leader = job.leader
        nodes.remove(leader)
        job.kill(leader)
        job.settle(*nodes)
        restart(job, *nodes)
    restart(job, *nodes, times=2)
    job.run(5.0)
    last = nodes[0].state.round
    assert set(of_rounds(job)) <= {last - 1, last, last + 1}


def test_unfinished_rounds_are_deleted_too(simulate):
    """The leader has written slots of its term, and died before the state that refers to them."""
    job = simulate(min_nodes=2, max_nodes=3, max_restarts=100)
    leader, *others = [job.add(is_alone=False) for _ in range(3)]
    while not leader.operations["leader", "MultiSet"]:
        assert job.step()
    job.kill(leader)
    job.settle(*others)
    restart(job, *others, times=3)
    job.run(5.0)
    assert set(of_rounds(job)) <= {2, 3, 4}


def test_a_node_that_was_away_does_not_wait_for_a_deleted_slot(settled):
    """It was in that round, but has not read that."""
    job, nodes = settled(3, max_restarts=100, min_nodes=2)
    first, second, away = nodes
    first.fail()
    assert job.run(5.0, lambda: away.membership.part.joined == (1, away.membership.part.joined[1]))
    away.is_paused = True
    job.settle(first, second)
    restart(job, first, second, times=3)
    job.run(10.0)
    assert 1 not in of_rounds(job)
    away.is_paused = False
    job.settle(*nodes)
    assert sorted(node.place.rank for node in nodes) == [0, 1, 2]


@pytest.mark.parametrize("says", [b"no number", b"1000000000", b"-3"])
@pytest.mark.parametrize("log", ["joined", "settled", "done"])
def test_an_invalid_counter_does_not_stop_the_leader(settled, caplog, log, says):
    """It is logged, and the records that it implies are not read."""
    job, nodes = settled(2, max_restarts=100)
    leader = nodes[0]
    restart(job, *nodes)
    counter = f"{getattr(leader.membership.keys, log)(0)}/tickets"
    job.store.set(counter, says)
    restart(job, *nodes)
    job.run(10.0)
    assert [node.error for node in nodes] == [None, None]
    assert "a past round's log is rejected" in caplog.text
    assert counter not in job.board.data
    restart(job, *nodes)
    job.run(10.0)
    assert set(of_rounds(job)) <= {0, 2, 3, 4}


def test_an_idle_cleanup_costs_nothing(settled):
    job, (leader, _) = settled(2, max_restarts=100)
    restart(job, *job.nodes, times=4)
    job.run(10.0)
    done = leader.operations.copy()
    job.run(10.0)
    for name in ("Delete", "Set", "CompareSet"):
        assert leader.operations["leader", name] == done["leader", name]
    assert leader.operations["leader", "Add"] - done["leader", "Add"] <= 22  # as without cleanup
