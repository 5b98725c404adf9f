"""How often an agent looks when nothing happens."""

from __future__ import annotations

import pytest
from plaunch.agent import LocalElasticAgent, WorkerState
from plaunch.testing.rendezvous import FakeElasticRendezvous, FakeRendezvous

from helpers.agents import Node, and_then

INTERVAL = 0.005  # seconds
FEW = 10  # looks; there are a hundred intervals in the life of a worker


def looks_of(agent_class, handler, tmp_path, look="changes", **options):
    """Run one worker that takes a hundred intervals; how often the agent looked."""
    looks = []
    and_then(handler, look, lambda: looks.append(1))
    script = f"import time; time.sleep({100 * INTERVAL})"
    node = Node(tmp_path, handler)
    agent = node.agent(script, nproc=1, kind=agent_class, monitor_interval=INTERVAL, **options)
    assert agent.run().state is WorkerState.SUCCEEDED
    return len(looks)


@pytest.fixture
def elastic():
    with FakeElasticRendezvous(world_size=1) as handler:
        yield handler


def test_an_idle_agent_polls_nothing(elastic, tmp_path):
    assert looks_of(LocalElasticAgent, elastic, tmp_path) <= FEW


def test_a_rendezvous_without_a_descriptor_is_polled_every_interval(tmp_path):
    looks = looks_of(LocalElasticAgent, FakeRendezvous(), tmp_path, look="num_nodes_waiting")
    assert looks > FEW


def test_a_limit_on_uninterruptible_sleep_is_checked_every_interval(elastic, tmp_path):
    looks = looks_of(LocalElasticAgent, elastic, tmp_path, uninterruptible_state_timeout=60)
    assert looks > FEW


def test_without_pidfds_workers_are_polled_every_interval(elastic, tmp_path, monkeypatch):
    monkeypatch.setenv("PLAUNCH_NO_PIDFD", "1")
    assert looks_of(LocalElasticAgent, elastic, tmp_path) > FEW
