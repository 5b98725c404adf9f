"""The first failure of a job, whatever the clocks of its nodes show; in simulated time."""

from __future__ import annotations

import pytest
from plaunch_membership.failures import JobFailure


def fail(job, node, rank, *, ago=0.0, is_consequence=False):
    """Report a failure as its node does: with the time of its own clock."""
    began = node.membership.wall_clock() - ago
    failure = JobFailure(rank, began, f"rank {rank} failed", is_consequence=is_consequence)
    node.agent.report([failure], is_final=False)


def gather(job, behind):
    """Return two nodes; the clock of the second is behind by some seconds."""
    nodes = [job.add(), job.add(clock_behind=behind)]
    job.settle(*nodes)
    return nodes


@pytest.fixture
def pair(simulate):
    """Make a job of two nodes that may not restart."""
    return simulate(min_nodes=2, max_nodes=2, max_restarts=0)


@pytest.mark.parametrize("behind", [-3600.0, -40.0, -4.0, 0.0, 4.0, 11.0, 300.0, 1000.0])
@pytest.mark.parametrize("cause", [0, 1])
def test_a_cause_comes_before_its_consequence(pair, behind, cause):
    nodes = gather(pair, behind)
    fail(pair, nodes[cause], cause, ago=1.5)
    fail(pair, nodes[1 - cause], 1 - cause, ago=0.5, is_consequence=True)
    pair.have_verdict(nodes)
    assert [failure.rank for failure in nodes[0].verdict.failures] == [cause, 1 - cause]


@pytest.mark.parametrize("behind", [-300.0, -1.0, 0.0, 1.0, 300.0])
@pytest.mark.parametrize("earlier", [0, 1])
def test_the_earlier_of_two_causes_comes_first(pair, behind, earlier):
    nodes = gather(pair, behind)
    fail(pair, nodes[1 - earlier], 1 - earlier, ago=0.5)
    fail(pair, nodes[earlier], earlier, ago=2.0)
    pair.have_verdict(nodes)
    assert nodes[0].verdict.failures[0].rank == earlier


@pytest.mark.parametrize("behind", [-300.0, 0.0, 300.0])
def test_a_report_has_the_time_of_the_host_and_early_ends_that_of_all(pair, behind):
    nodes = gather(pair, behind)
    clock = nodes[1].membership.wall_clock
    nodes[1].agent.note_succeeded({3: clock() - 7.0})
    fail(pair, nodes[0], 0, is_consequence=True)
    pair.have_verdict(nodes)
    (line,) = nodes[0].verdict.early_ends
    assert "rank 3" in line
    assert line.endswith(" 7 s before")
