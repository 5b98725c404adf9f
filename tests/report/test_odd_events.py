"""Events that no launcher writes, from damaged or forged files."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
from plaunch.errors import UsageError
from plaunch_report import cli
from plaunch_report.page import create_table

from helpers.mutations import mutate

NUMBERS = [10**400, -(10**400), 1e308, -1e308, 2**63, 2**53, 1e12, -1, 0.5, True, "x", None, [1]]


def tell(runs):
    builder, event_files = runs.builder()
    summary = builder.create_summary()
    return summary, create_table(event_files, builder)


def page_of(runs):
    pytest.importorskip("bokeh")
    from plaunch_report.page import create_page

    return "".join(create_page(*tell(runs)))


def change(agent, **fields):
    """Set these fields in all events of an agent, at the top level or in the metadata."""
    lines = [json.loads(line) for line in agent.lines]
    for event in lines:
        for name, value in fields.items():
            (event if name in event else event["metadata"])[name] = value
    agent.lines = [json.dumps(event) for event in lines]
    agent.write()


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
@pytest.mark.parametrize(
    "names",
    [
        ["seconds", "duration", "lifetime", "elapsed", "seconds_total", "seconds_lost"],
        ["world_size", "group_world_size", "local_world_size"],
        ["local_rank", "global_rank", "group_rank", "worker_pid", "agent_pid"],
        ["round", "attempt", "exit_code"],
    ],
    ids=lambda names: names[0],
)
def test_no_number_breaks_the_summary(runs, names, number):
    agents = runs.elastic()
    change(agents[1], **dict.fromkeys(names, number))
    summary, table = tell(runs)
    assert summary.outcome == "succeeded"
    assert json.dumps(dataclasses.asdict(summary), allow_nan=False)
    assert table.rows


@pytest.mark.parametrize("number", [10**400, 1e308, 2**53, 70_000], ids=repr)
def test_no_number_breaks_the_page(runs, number):
    agents = runs.elastic()
    names = ["world_size", "local_rank", "global_rank", "seconds", "round", "exit_code"]
    change(agents[1], **dict.fromkeys(names, number))
    assert page_of(runs).rstrip().endswith("</html>")


@pytest.mark.parametrize("number", [9e11, 2.6e11, 253_402_300_799, -1e11])
def test_an_event_with_an_invalid_date_is_ignored(runs, number):
    """The year 30489, and those before 1970; no event of this agent is left."""
    agents = runs.elastic()
    change(agents[1], timestamp=number)
    assert sorted(agent.host for agent in runs.read().agents) == ["a", "c"]
    assert "</html>" in page_of(runs)


def test_absurd_clocks_leave_the_beginning_unknown(runs):
    """Each date is valid, but the computed one is not."""
    agent = runs.agent("a").start(0)
    path = agent.write()
    events = [json.loads(agent.lines[0]) for _ in range(3)]
    for event, monotonic in zip(events, (-9e11, 9e11, 9e11), strict=True):
        event["monotonic"] = monotonic
        event["timestamp"], event["name"] = 1.0, "plaunch.rendezvous.begun"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    page = page_of(runs)
    assert "<dt>began</dt><dd>at an unknown time</dd>" in page


def launcher_fails(runs):
    agent = runs.agent("a").start(0)
    agent.join(1, 2, 3, round=0, world=2, nodes=1, rank=0)
    agent.fail(4, -1, 100, exit_code=113, message="no disk", error_file=None)
    agent.finish(5, "failed", 113).write()


def test_a_failed_launcher_is_named_as_one(runs):
    """It has no rank, which is -1 in the event."""
    launcher_fails(runs)
    summary, _ = tell(runs)
    assert summary.first_cause.who == "the launcher"
    page = page_of(runs)
    assert "The launcher</b> on <b>a</b> (pid 100), exit code 113" in page
    assert "<em>first</em> the launcher on a (pid 100): exit code 113" in page
    assert "ank <b>-1" not in page
    assert "rank -1" not in page


@pytest.mark.parametrize("seed", range(60))
def test_randomly_changed_events_do_not_break_the_report(runs, seed, capsys):
    choose = random.Random(seed)
    for agent in runs.elastic():
        lines = [
            mutate(choose, json.loads(line)) if choose.random() < 0.3 else line.encode()
            for line in agent.lines
        ]
        agent.path.write_bytes(b"\n".join(lines) + b"\n")
    try:
        summary, _ = tell(runs)
    except UsageError:
        summary = None
    if summary is not None:
        assert json.dumps(dataclasses.asdict(summary), allow_nan=False)
        if seed % 10 == 0:
            assert "</html>" in page_of(runs)
    assert cli.main([str(runs.folder), "--json", "--run-id=job"]) in (0, 2)
    capsys.readouterr()
