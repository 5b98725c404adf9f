"""Agents that are built by hand, with torchrun's calls, as PyTorch's own tests of agents do."""

from __future__ import annotations

import json

import pytest
from plaunch.agent import LocalElasticAgent, WorkerSpec, WorkerState
from plaunch.errors import PluginError, RendezvousClosedError, UsageError
from plaunch.rendezvous import RendezvousParameters
from plaunch.testing import FakeJobRendezvous, FakeRendezvous
from plaunch_membership import DynamicRendezvousHandler, StoreAccess
from plaunch_membership.testing import MemoryBoard
from plaunch_rendezvous_etcd.testing.fixtures import etcd_server  # noqa: F401 - a fixture

from helpers.agents import UP, Node, run_nodes
from helpers.ports import free_port

WORKER = """\
import json, os, sys
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME GROUP_RANK"
names += " GROUP_WORLD_SIZE TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS"
facts = {name: os.environ[name] for name in names.split()}
os.write(1, (json.dumps(facts) + chr(10)).encode())
sys.exit(int(facts["TORCHELASTIC_RESTART_COUNT"] in sys.argv[1:] and facts["RANK"] == "1"))
"""
# The result of the agent is written behind what its workers have found.
RUN = """\
result = agent.run()
handler.shutdown()
sys.stdout.write(json.dumps({"state": result.state.value, "ranks": sorted(result.return_values)}))
"""
SPEC = {"role": "trainer", "args": ["-c", WORKER], "max_restarts": 0, "monitor_interval": 0.01}


def failing(*attempts, max_restarts):
    """Settings of workers, of which rank 1 fails in these attempts."""
    return {"max_restarts": max_restarts, "args": [*SPEC["args"], *map(str, attempts)]}


class Job:
    """The nodes of one job, each an agent in a process of its own."""

    def __init__(self, with_torch=None, **rendezvous):
        self.with_torch = with_torch
        self.rendezvous = {"last_call_timeout": 1, **rendezvous}

    def facts(self, *nodes):
        """Run nodes, which are settings of workers, to their end, which must be a success.

        What is given are the workers' environments, and the results of the agents.
        """
        workers, results = [], []
        rendezvous = {**self.rendezvous, "min_nodes": len(nodes), "max_nodes": len(nodes)}
        given = [{"rendezvous": rendezvous, "spec": {**SPEC, **node}} for node in nodes]
        for done in run_nodes(RUN, *given, with_torch=self.with_torch):
            assert done.returncode == 0, done.stderr
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            results += [line for line in lines if "state" in line]
            workers += [line for line in lines if "RANK" in line]
        assert {result["state"] for result in results} == {"SUCCEEDED"}
        return sorted(workers, key=lambda worker: int(worker["RANK"])), results


@pytest.fixture(params=["c10d", "etcd-v2"])
def job(request, tmp_path):
    with_torch = None
    if request.param == "c10d":
        with_torch = request.getfixturevalue("with_torch")
        endpoint = f"localhost:{free_port()}"
    else:
        endpoint = request.getfixturevalue("etcd_server").endpoint
    run_id = f"by-hand-{tmp_path.name}"
    return Job(with_torch, backend=request.param, endpoint=endpoint, run_id=run_id)


def values(workers, name):
    return [worker[name] for worker in workers]


def test_one_node_has_the_ranks_and_the_restarts_of_its_spec(job):
    workers, results = job.facts({"local_world_size": 2, **failing(0, 1, max_restarts=2)})
    last = [worker for worker in workers if worker["TORCHELASTIC_RESTART_COUNT"] == "2"]
    assert values(last, "RANK") == ["0", "1"]
    assert set(values(workers, "WORLD_SIZE")) == {"2"}
    assert set(values(workers, "TORCHELASTIC_MAX_RESTARTS")) == {"2"}
    assert results[0]["ranks"] == [0, 1]


@pytest.mark.slow
def test_nodes_alike(job):
    workers, results = job.facts({"local_world_size": 2}, {"local_world_size": 2})
    assert values(workers, "RANK") == ["0", "1", "2", "3"]
    assert set(values(workers, "WORLD_SIZE")) == {"4"}
    assert sorted(result["ranks"] for result in results) == [[0, 1], [2, 3]]


@pytest.mark.slow
def test_nodes_with_roles_and_sizes_of_their_own(job):
    workers, _ = job.facts(
        {"role": "master", "local_world_size": 1},
        {"role": "trainer", "local_world_size": 2},
        {"role": "trainer", "local_world_size": 3},
    )
    assert values(workers, "RANK") == [str(rank) for rank in range(6)]
    assert set(values(workers, "WORLD_SIZE")) == {"6"}
    trainers = [worker for worker in workers if worker["ROLE_NAME"] == "trainer"]
    assert sorted(values(trainers, "ROLE_RANK")) == [str(rank) for rank in range(5)]
    assert set(values(trainers, "ROLE_WORLD_SIZE")) == {"5"}
    assert sorted(values(workers, "LOCAL_WORLD_SIZE")) == ["1", "2", "2", "3", "3", "3"]


@pytest.mark.slow
def test_a_failure_anywhere_restarts_all_nodes(job):
    workers, _ = job.facts(*[{"local_world_size": 1, **failing(0, max_restarts=1)}] * 2)
    again = [worker for worker in workers if worker["TORCHELASTIC_RESTART_COUNT"] == "1"]
    assert values(again, "RANK") == ["0", "1"]


def agent_for(handler, **settings):
    values = {"role": "r", "local_world_size": 2, "entrypoint": "/bin/true", **settings}
    return LocalElasticAgent(WorkerSpec(rdzv_handler=handler, **values))


@pytest.fixture
def create():
    """Make handlers over a store of this process."""
    board = MemoryBoard()
    handlers = []

    def create(local_addr=None):
        params = RendezvousParameters("memory", "board", "job", 1, 1, local_addr)
        handler = DynamicRendezvousHandler(
            params, StoreAccess(board.connect, local_addr or "127.0.0.1")
        )
        handlers.append(handler)
        return handler

    yield create
    for handler in handlers:
        handler.shutdown()


def test_an_address_that_differs_is_refused(create):
    with pytest.raises(UsageError, match=r"local_addr='10\.0\.0\.1'.*'10\.0\.0\.2'"):
        agent_for(create("10.0.0.1"), local_addr="10.0.0.2")


def test_the_address_of_the_spec_counts_where_there_is_no_other(create):
    handler = create()
    agent_for(handler, local_addr="10.0.0.2")
    assert handler.next_rendezvous().bootstrap_store_info.master_addr == "10.0.0.2"


def test_a_handler_that_has_joined_takes_no_other_spec(create):
    handler = create()
    agent_for(handler)
    handler.next_rendezvous()
    agent_for(handler)
    with pytest.raises(UsageError, match="needs a rendezvous handler of its own"):
        agent_for(handler, local_world_size=3)


def test_ranks_of_a_handler_that_takes_no_notice_are_refused():
    with FakeJobRendezvous() as handler:
        handler.prepare = lambda node: None
        with pytest.raises(PluginError, match=r"'fake' gives the 2 workers .*prepare"):
            agent_for(handler).run()


def test_an_agent_may_run_again(create):
    handler = create()
    agent = agent_for(handler)
    results = [agent.run(), agent.run(), agent_for(handler, local_world_size=3).run()]
    assert [result.state for result in results] == [WorkerState.SUCCEEDED] * 3
    assert [len(result.return_values) for result in results] == [2, 2, 3], "workers ran"


def test_an_agent_whose_workers_have_failed_may_run_again(create):
    agent = agent_for(create(), entrypoint="/bin/false")
    assert agent.run().is_failed()
    assert agent.run().is_failed()


def test_an_agent_does_not_run_again_in_a_rendezvous_that_is_closed(create):
    handler = create()
    agent = agent_for(handler)
    agent.run()
    handler.set_closed()
    with pytest.raises(RendezvousClosedError):
        agent.run()


def test_restarts_that_an_earlier_run_has_used_remain_used(tmp_path):
    node = Node(tmp_path, FakeRendezvous())
    agent = node.agent(f"{UP}up(); sys.exit(1)", 1, max_restarts=1)
    assert agent.run().is_failed()
    assert agent.run().is_failed()
    assert node.starts() == ["0.0.0", "1.1.0", "2.1.0"]
