"""How often an agent looks when nothing happens."""

from __future__ import annotations

import pytest
from plaunch.agent import LocalElasticAgent, RunResult, WorkerState
from plaunch.testing.rendezvous import FakeElasticRendezvous, FakeRendezvous

from helpers.agents import Node

INTERVAL = 0.005  # seconds
FEW = 10  # looks; there are a hundred intervals in the life of a worker


class Elastic(FakeElasticRendezvous):
    looks = 0

    def changes(self):
        self.looks += 1
        return super().changes()


class Plain(FakeRendezvous):
    looks = 0

    def num_nodes_waiting(self):
        self.looks += 1
        return super().num_nodes_waiting()


def looks_of(agent_class, handler, tmp_path):
    """Run one worker that takes a hundred intervals; how often the agent looked."""
    script = f"import time; time.sleep({100 * INTERVAL})"
    node = Node(tmp_path, handler)
    agent = node.agent(script, nproc=1, kind=agent_class, monitor_interval=INTERVAL)
    assert agent.run().state is WorkerState.SUCCEEDED
    return handler.looks


@pytest.fixture
def elastic():
    with Elastic(world_size=1) as handler:
        yield handler


def test_nobody_looks_at_what_would_tell(elastic, tmp_path):
    assert looks_of(LocalElasticAgent, elastic, tmp_path) <= FEW


def test_a_rendezvous_that_can_only_be_asked_is_asked_every_interval(tmp_path):
    assert looks_of(LocalElasticAgent, Plain(), tmp_path) > FEW


def test_a_subclass_that_looks_at_more_than_exits_does_so_every_interval(elastic, tmp_path):
    class Watchful(LocalElasticAgent):
        def _monitor_workers(self, worker_group) -> RunResult:
            return super()._monitor_workers(worker_group)

    assert looks_of(Watchful, elastic, tmp_path) > FEW


def test_without_pidfds_workers_are_looked_at_every_interval(elastic, tmp_path, monkeypatch):
    monkeypatch.setenv("PLAUNCH_NO_PIDFD", "1")
    assert looks_of(LocalElasticAgent, elastic, tmp_path) > FEW
