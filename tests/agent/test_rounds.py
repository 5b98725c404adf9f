"""Joining rounds: which ranks workers get, alone, among equals, and over a store."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch.agent import WorkerSpec
from plaunch.agent.local_job import LocalJob, assign_alike
from plaunch.agent.rounds import create_workers, join_round
from plaunch.errors import RendezvousStateError
from plaunch.rendezvous import JobRendezvous, WorldRanks, world_ranks
from plaunch.testing import FakeJobRendezvous
from plaunch.testing.rendezvous import FakeRendezvous
from plaunch_torchrun.round_store import assign_ranks

from helpers.calls import Call
from helpers.stores import Store

NODES = st.lists(
    st.tuples(st.sampled_from(["trainer", "reader", "critic"]), st.integers(1, 5)),
    min_size=1,
    max_size=12,
)


def test_nodes_of_different_sizes_and_roles():
    nodes = [("trainer", 2), ("reader", 1), ("trainer", 3)]
    assert world_ranks(nodes) == [
        WorldRanks(first_global=0, world_size=6, first_role=0, role_world_size=5),
        WorldRanks(first_global=2, world_size=6, first_role=0, role_world_size=1),
        WorldRanks(first_global=3, world_size=6, first_role=2, role_world_size=5),
    ]


@given(NODES)
def test_every_rank_is_given_once(nodes):
    workers = [
        (role, worker)
        for (role, size), ranks in zip(nodes, world_ranks(nodes), strict=True)
        for worker in create_workers(ranks, size)
    ]
    total = sum(size for _, size in nodes)
    assert [worker.global_rank for _, worker in workers] == list(range(total))
    assert {worker.world_size for _, worker in workers} == {total}
    for role in {role for role, _ in workers}:
        same = [worker for other, worker in workers if other == role]
        assert [worker.role_rank for worker in same] == list(range(len(same)))
        assert {worker.role_world_size for worker in same} == {len(same)}


@given(st.integers(1, 5), st.integers(1, 9))
def test_equal_nodes_need_not_ask(local_world_size, nodes):
    asked = world_ranks([("trainer", local_world_size)] * nodes)
    assert [assign_alike(local_world_size, rank, nodes) for rank in range(nodes)] == asked


def test_nodes_agree_over_the_store_whatever_their_order():
    nodes = [("trainer", 2), ("reader", 1), ("trainer", 3)]
    store, answers = Store(), {}

    def join(rank):
        answers[rank] = assign_ranks(store, *nodes[rank], rank, len(nodes))

    assert all(call.ended() for call in [Call(join, rank) for rank in (2, 0, 1)])
    assert [answers[rank] for rank in range(3)] == world_ranks(nodes)


def test_torchruns_agents_understand_what_is_written():
    api = pytest.importorskip("torch.distributed.elastic.agent.server.api")
    store = Store()
    assign_ranks(store, "trainer", 2, 0, 1)
    theirs = api._RoleInstanceInfo.deserialize(store.values["torchelastic/role_info/0"])
    assert (theirs.role, theirs.rank, theirs.local_world_size) == ("trainer", 0, 2)
    assert json.loads(store.values["torchelastic/assigned_ranks/0"]) == [0, 2, 0, 2]


@pytest.mark.parametrize("garbage", ["not json", "[1]", "[1, 2, 3, null]", '{"a": 1}'])
def test_garbage_in_the_store_is_named(garbage):
    store = Store()
    store.set("torchelastic/assigned_ranks/1", garbage)
    with pytest.raises(RendezvousStateError, match="no valid ranks for node 1"):
        assign_ranks(store, "trainer", 1, 1, 2)


def joined(handler, nproc=2):
    """The global ranks of the second of two nodes, and the size of the world."""
    spec = WorkerSpec("trainer", nproc, handler, entrypoint="python")
    job = handler
    if not isinstance(handler, JobRendezvous):
        job = LocalJob(
            spec,
            None,
            attempt=0,
            wait_for_peers=print,
            wake=print,
            is_running=bool,
            is_asked_to_end=bool,
        )
    workers = join_round(job, spec).workers
    return [worker.global_rank for worker in workers], workers[0].world_size


@pytest.mark.parametrize(("promise", "asks"), [(None, True), ("0", True), ("1", False)])
def test_nodes_of_a_plain_handler_ask_each_other_unless_they_are_promised_to_be_alike(
    monkeypatch, promise, asks
):
    monkeypatch.delenv("TORCH_ELASTIC_WORKER_IDENTICAL", raising=False)
    if promise is not None:
        monkeypatch.setenv("TORCH_ELASTIC_WORKER_IDENTICAL", promise)
    store = Store()
    store.set("torchelastic/assigned_ranks/1", "[3, 5, 3, 5]")  # the first node has three workers
    handler = FakeRendezvous(rank=1, world_size=2, store=store)
    assert joined(handler) == (([3, 4], 5) if asks else ([2, 3], 4))
    assert ("torchelastic/role_info/1" in store.values) is asks


@pytest.mark.parametrize("promise", ["0", "1"])
def test_a_round_that_brings_the_ranks_needs_no_promise(monkeypatch, promise):
    monkeypatch.setenv("TORCH_ELASTIC_WORKER_IDENTICAL", promise)
    handler = FakeJobRendezvous(rank=1, world_size=2, local_world_size=2)
    handler.ranks = WorldRanks(first_global=3, world_size=5, first_role=3, role_world_size=5)
    with handler:
        assert joined(handler) == ([3, 4], 5)
