"""All nodes are notified when most of them have succeeded."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(("count", "enough"), [(2, 1), (3, 2), (5, 3), (6, 3)])
def test_all_nodes_are_notified_once_when_half_of_them_have_succeeded(settled, count, enough):
    job, nodes = settled(count)
    for node in nodes[: enough - 1]:
        node.agent.succeed()
    job.run(60.0)
    assert [node.kinds for node in nodes] == [[]] * count
    nodes[enough - 1].agent.succeed()
    job.run(60.0)
    assert [node.kinds for node in nodes] == [["ending"]] * count
    for node in nodes[enough:]:
        node.agent.succeed()
    job.run(10.0)
    assert {node.verdict.outcome for node in nodes} == {"succeeded"}


def test_the_next_leader_may_notify_again(settled):
    job, nodes = settled(4)
    for node in nodes[1:3]:
        node.agent.succeed()
    job.run(20.0)
    nodes[0].agent.succeed()
    job.run(1.0)
    job.kill(nodes[0])
    job.run(120.0)
    assert set(nodes[3].kinds) == {"ending"}


def test_nodes_that_succeed_one_soon_after_the_other_are_not_notified(settled):
    job, nodes = settled(4)
    for node in nodes:
        node.agent.succeed()
    job.run(10.0)
    assert "ending" not in {kind for node in nodes for kind in node.kinds}
