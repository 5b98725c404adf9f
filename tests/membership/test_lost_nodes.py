"""After the loss of a node, a job ends, restarts or waits: the table in docs/restarts.md."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from plaunch.restarts import parse_budgets
from plaunch_membership.restarts import FailureContext
from plaunch_membership.state import JobPhase
from plaunch_restarts.policies import (
    AlwaysRestartPolicy,
    NeverRestartPolicy,
    StandardRestartPolicy,
)

from helpers.hooks import context_of

PAGE = Path(__file__).parents[2] / "docs" / "restarts.md"
RESTARTS = [
    total + node for total in "013" for node in ("", ",node:0", ",node:1", ",node:inf")
]  # all that the table must know
NODES, ROOM = ("2", "2:3"), ("yes", "no")
KILLED = 137


def rows():
    """The cells of the table, without marks."""
    _, _, text = PAGE.read_text().partition("<!-- checked: tests/membership/test_lost_nodes.py -->")
    lines = itertools.takewhile(lambda line: line.startswith("|"), text.strip().splitlines())
    for line in [*lines][2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        words, nodes = (re.findall("`([^`]+)`", cell) for cell in cells[:2])
        yield words, nodes, cells[2].split(", "), cells[3], cells[4]


def expected(restarts, nodes, room):
    """What the first row that matches says about the first and the second loss."""
    for row in rows():
        if restarts in row[0] and nodes in row[1] and room in row[2]:
            return row[3], row[4]
    return None


def policy_of(restarts, nodes, kind=StandardRestartPolicy):
    total, by_cause = parse_budgets(restarts)
    low, _, high = nodes.partition(":")
    settings = {"min_nodes": int(low), "max_nodes": int(high or low)}
    return kind(context_of(max_restarts=total, max_restarts_by_cause=by_cause, **settings))


def what_follows(job, before):
    """Run the job until it has ended or restarted, or until it is clear that it waits."""
    survivor = job.living[0]

    def is_decided():
        is_formed = job.is_settled() and survivor.place.round > before
        return survivor.verdict is not None or is_formed

    if not job.run(60.0, is_decided):
        assert survivor.state.phase is JobPhase.FORMING
        return "waits"
    if survivor.verdict is None:
        return "restarts"
    job.have_verdict(job.living)
    for node in job.living:
        (failure,) = (f for f in node.verdict.failures if f.rank < 0)
        assert failure.detail["exit_code"] == KILLED
        assert " was lost: " in node.verdict.reason
        assert node.verdict.no_restart
    return "ends"


def lose(job, victim):
    """Kill a node that is a member of the round; return what follows."""
    members = [node for node in job.living if node.place is not None]
    before = members[0].place.round
    leader = job.leader
    job.kill(leader if victim == "leader" else next(n for n in members if n is not leader))
    return what_follows(job, before)


def play(simulate, restarts, nodes, room, victim="leader", kind=StandardRestartPolicy, **timing):
    """Two losses in a row; only at the first one is there room."""
    low, _, high = nodes.partition(":")
    total, _ = parse_budgets(restarts)
    job = simulate(min_nodes=int(low), max_nodes=int(high or low), max_restarts=total, **timing)
    job.restart_policy = policy_of(restarts, nodes, kind)
    running = [job.add() for _ in range(3 if nodes == "2:3" and room == "yes" else 2)]
    job.settle(*running)
    if nodes == "2" and room == "yes":
        job.add()
        job.run(3.0)
    first = lose(job, victim)
    if first == "ends":
        return first, ""
    if first == "waits":
        job.add()
        job.settle()
    return first, lose(job, victim)


def test_the_table_has_each_combination_once():
    assert {restarts for row in rows() for restarts in row[0]} == {*RESTARTS}
    for case in itertools.product(RESTARTS, NODES, ROOM):
        assert expected(*case) is not None, case


@pytest.mark.parametrize("victim", ["leader", "another"])
@pytest.mark.parametrize("room", ROOM)
@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("restarts", RESTARTS)
def test_a_killed_node_a_host_that_is_down_and_a_cut_cable(simulate, restarts, nodes, room, victim):
    assert play(simulate, restarts, nodes, room, victim) == expected(restarts, nodes, room)


@pytest.mark.parametrize("room", ROOM)
@pytest.mark.parametrize("restarts", ["0", "0,node:inf", "1"])
def test_a_connection_that_has_ended(simulate, restarts, room):
    """The store of `c10d` knows at once that a killed agent is gone."""
    found = play(simulate, restarts, "2", room, absence_is_loss=True)
    assert found == expected(restarts, "2", room)


@pytest.mark.parametrize("room", ROOM)
@pytest.mark.parametrize("nodes", NODES)
def test_other_policies_do_as_they_say(simulate, nodes, room):
    first = "restarts" if room == "yes" else "waits"
    for restarts in ("0", "1"):
        assert play(simulate, restarts, nodes, room, kind=AlwaysRestartPolicy) == (first, "waits")
        assert play(simulate, restarts, nodes, room, kind=NeverRestartPolicy) == ("ends", "")


@pytest.mark.parametrize("restarts", RESTARTS)
@pytest.mark.parametrize("room", ROOM)
def test_a_node_that_leaves_is_not_lost(simulate, restarts, room):
    job = simulate(min_nodes=2, max_nodes=2, max_restarts=parse_budgets(restarts)[0])
    job.restart_policy = policy_of(restarts, "2")
    running = job.gather(2)
    if room == "yes":
        job.add()
        job.run(3.0)
    gone = running[1]
    before = gone.place.round
    gone.agent.announce_leave("SIGTERM received")
    gone.agent.leave("SIGTERM received")
    job.run(3.0)
    job.kill(gone)
    assert what_follows(job, before) == ("restarts" if room == "yes" else "waits")


def test_the_report_says_how_many_nodes_are_missing(simulate):
    job = simulate(min_nodes=2, max_nodes=2, max_restarts=0)
    job.restart_policy = policy_of("0", "2")
    running = job.gather(2)
    job.kill(running[1])
    assert what_follows(job, 0) == "ends"
    assert "1 node is missing, and none waits to take a place" in running[0].verdict.no_restart


def test_an_excluded_host_makes_no_room():
    context = FailureContext(0.0, ("a", "b", "b"))
    assert [context.missing_nodes(count, ()) for count in (2, 3, 5)] == [0, 0, 2]
    assert context.missing_nodes(3, {"b": "it is not healthy"}) == 2
