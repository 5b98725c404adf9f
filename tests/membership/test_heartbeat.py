"""Heartbeats in a store with leases: written once, renewed, and removed with their node."""

from __future__ import annotations

import random

import pytest
from plaunch_membership.liveness import LivenessObserver
from plaunch_membership.testing import MemoryStore

LEASE = 3.0


class LeasedStore(MemoryStore):
    """Removes heartbeats that were not renewed for the duration of a lease."""

    def __init__(self, job, lease=LEASE):
        super().__init__(job.board)
        self.written = []
        self._job, self._lease = job, lease
        self._ends = {}

    def beat(self, key, value):
        self._expire()
        if self._board.data.get(key) != value:
            super().beat(key, value)
            self.written.append(key)
        self._ends[key] = self._job.now + self._lease
        return self._lease

    def multi_get(self, keys):
        self._expire()
        return super().multi_get(keys)

    def revoke(self):
        for key in list(self._ends):
            self._end(key)

    def _expire(self):
        for key in [key for key, end in self._ends.items() if end <= self._job.now]:
            self._end(key)

    def _end(self, key):
        del self._ends[key]
        self._board.data.pop(key, None)


@pytest.fixture
def leased(simulate):
    def make(choose=None, *, lease=LEASE, **settings):
        job = simulate(choose, **{"keep_alive_max_attempt": 5, **settings})
        if lease:
            job.store = LeasedStore(job, lease)
        return job

    return make


# --- a whole job ----------------------------------------------------------------------------------


def test_a_heartbeat_is_written_only_when_it_changes(leased):
    job = leased(min_nodes=3)
    nodes = job.gather(3)
    job.run(5.0)
    job.store.written.clear()
    job.run(1000.0)
    assert job.store.written == []
    nodes[2].agent.leave("was stopped")
    job.run(0.5)
    assert job.store.written.count(nodes[2].membership.keys.beat(nodes[2].name)) == 1
    assert nodes[0].kinds == ["left"]


@pytest.mark.parametrize("lease", [2.0, 3.0, 4.0])
def test_a_dead_node_is_lost_in_time(leased, lease):
    job = leased(lease=lease)
    nodes = job.gather(3)
    job.run(10.3)
    job.kill(nodes[1])
    began = job.now
    job.settle(nodes[0], nodes[2])
    assert 4.0 <= job.now - began <= 7.0
    assert nodes[0].kinds == ["lost"]


@pytest.mark.parametrize(
    ("lease", "seconds"), [(LEASE, 2.5), (LEASE, 3.5), (LEASE, 4.0), (None, 3.5)]
)
def test_a_node_that_is_suspended_for_less_is_not_lost(leased, lease, seconds):
    job = leased(lease=lease)
    nodes = job.gather(3)
    job.run(10.3)
    for node in nodes:  # one after the other, so the leader as well
        node.is_paused = True
        job.run(seconds)
        node.is_paused = False
        job.run(10.0)
    assert [node.kinds for node in nodes] == [[], [], []]


@pytest.mark.parametrize("who", [0, 1, 2])
@pytest.mark.parametrize("seconds", [6.0, 7.3, 9.9, 20.0])
@pytest.mark.parametrize("lease", [LEASE, None])
@pytest.mark.parametrize("seed", range(5))
def test_a_lost_node_that_wakes_up_costs_one_more_round(leased, lease, seconds, who, seed):
    job = leased(random.Random(seed).randrange, lease=lease, keep_alive_max_attempt=3)
    nodes = job.gather(3)
    job.run(10.3)
    nodes[who].is_paused = True
    job.run(seconds)
    others = [node for node in nodes if node is not nodes[who]]
    assert [(node.place.nodes, node.place.round) for node in others] == [(2, 1)] * 2
    nodes[who].is_paused = False
    job.settle(*nodes)
    job.run(30.0)
    assert [(node.place.nodes, node.place.round) for node in nodes] == [(3, 2)] * 3
    assert "lost" in nodes[who].kinds


def test_revoked_leases_lose_no_node(leased):
    job = leased()
    nodes = job.gather(3)
    for _ in range(20):
        job.run(1.7)
        job.store.revoke()
    job.run(10.0)
    assert [node.kinds for node in nodes] == [[], [], []]


def test_after_an_outage_all_nodes_have_time_to_return(leased):
    job = leased()
    nodes = job.gather(3)
    job.run(5.0)
    for node in nodes:
        node.is_paused = True
    job.run(10.0)
    for node in nodes:  # the others connect later than the leader
        node.is_paused = False
        job.run(2.0)
    assert [node.kinds for node in nodes] == [[], [], []]


@pytest.mark.parametrize("min_nodes", [1, 2])
def test_leases_of_dead_nodes_are_not_signs_of_life(leased, caplog, min_nodes):
    """A node with the job's settings, or with others, arrives just after the job has crashed."""
    job = leased(min_nodes=1, max_nodes=2)
    (dead,) = job.gather(1)
    job.run(5.0)
    job.kill(dead)
    again = [job.add(min_nodes=min_nodes) for _ in range(min_nodes)]
    job.settle(*again)
    assert {node.error for node in again} == {None}
    assert again[0].incarnation != dead.incarnation
    assert "starts again" in caplog.text


def test_a_living_job_refuses_other_settings(leased):
    job = leased(min_nodes=1, max_nodes=2)
    (first,) = job.gather(1)
    job.run(10.0)
    job.refuse("--nnodes=2:2 here, 1:2 there", min_nodes=2)
    assert first.kinds == []


def test_a_spare_that_becomes_leader_soon_knows_who_is_alive(leased):
    job = leased(lambda count: count - 1, min_nodes=2, max_nodes=2)
    first = job.add()
    job.run(0.5)  # out of step, so that it knows the new leader before it is checked
    second = job.add()
    job.settle(first, second)
    job.run(0.5)
    spare = job.add()
    job.run(10.0)
    job.kill(first)
    began, incarnation = job.now, second.incarnation
    job.settle(second, spare)
    assert second.state.leader == spare.name
    assert second.incarnation == incarnation
    assert job.now - began <= 8.0


# --- one observer ---------------------------------------------------------------------------------


def observed(text, *, lease, max_misses=5, interval=1.0):
    """Whether `a` is lost after each observation: present (x) or not (.); late: (z) or (,)."""
    now = [1000.0]
    observer = LivenessObserver(interval, max_misses, lambda: now[0])
    found = ""
    for letter in text:
        now[0] += 10 * interval if letter in "z," else interval
        beats = {"a": None if letter in ".," else b"same"}
        leases = {} if letter in ".," else {"a": lease}
        found += "L" if observer.observe(beats, leases=leases) else "-"
    return found


@pytest.mark.parametrize(
    ("text", "lease", "lost"),
    [
        ("xxxxxxxxxx", 3, "----------"),
        ("xx.....", 3, "----LLL"),  # the first absence is the third miss
        ("xx.....", 2, "-----LL"),
        ("xx.....", 0.5, "------L"),
        ("xx.....", 60, "---LLLL"),  # but never at the first absence
        ("xx..x..x", 3, "--------"),
        ("xx...xx", 3, "----L--"),
        ("xxz.....", 3, "-------L"),  # a lease that expires during a suspension proves nothing
        ("xx,.....", 3, "-------L"),
        ("xxzx....", 3, "------LL"),
        ("..x...", 3, "-----L"),
    ],
)
def test_an_absence_counts_for_the_time_of_the_lease(text, lease, lost):
    assert observed(text, lease=lease) == lost


def test_the_silence_includes_the_lease():
    now = [1000.0]
    observer = LivenessObserver(1.0, 5, lambda: now[0])
    for beat, leases, silent in ((b"x", {"a": 3.0}, 0), (None, {}, 3), (None, {}, 4)):
        now[0] += 1
        observer.observe({"a": beat}, leases=leases)
        assert observer.describe_loss("a") == f"no heartbeat for {silent}.0 s"
