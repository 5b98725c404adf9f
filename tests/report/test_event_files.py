"""Reading files of events, including unreadable ones."""

from __future__ import annotations

import json
import os
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch.errors import UsageError
from plaunch.events import Event, EventSource
from plaunch_report.event_files import read_folders
from plaunch_report.page import create_table


def names(event_files):
    """The names of the events of each agent."""
    found = {id(agent): [] for agent in event_files.agents}
    for agent, record in event_files.records():
        found[id(agent)].append(record.name.removeprefix("plaunch."))
    return list(found.values())


def only(event_files):
    """The one event of the one agent."""
    [(agent, record)] = event_files.records()
    assert [agent] == event_files.agents
    assert agent.count == 1
    return agent, record


def test_a_serialized_event_is_read(tmp_path):
    metadata = {"run_id": "job", "host": "a", "agent_pid": 7, "round": 2, "reason": None}
    event = Event("plaunch.restart", EventSource.AGENT, 12.5, metadata, 3.25)
    (tmp_path / "a.jsonl").write_text(event.serialize() + "\n")
    agent, record = only(read_folders([str(tmp_path)]))
    assert (agent.run_id, agent.host, agent.pid) == ("job", "a", 7)
    assert (record.name, record.timestamp, record.monotonic) == ("plaunch.restart", 12.5, 3.25)
    assert (record.number("round"), record.text("reason"), record.text("host")) == (2, "", "a")


def test_rotated_files_are_read_from_the_oldest(runs):
    agent = runs.agent("a").start(0).tell(1, "rendezvous.begun").tell(2, "rendezvous.failed")
    agent.finish(3, "error", 111)
    path = agent.write()
    for number, line in zip((10, 2, 1), agent.lines, strict=False):
        path.with_name(f"{path.name}.{number}").write_text(line + "\n")
    path.write_text(agent.lines[-1] + "\n")
    event_files = runs.read()
    assert names(event_files) == [
        ["launcher.started", "rendezvous.begun", "rendezvous.failed", "launcher.finished"]
    ]
    assert event_files.file_count == 4


def test_incomplete_and_invalid_lines_are_counted_and_skipped(runs):
    path = runs.agent("a").start(0).finish(1, "succeeded", 0).write()
    good = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(good[0] + b"\xff\xfe garbage\n\n[1, 2]\n" + good[1] + good[1][:40])
    event_files = runs.read()
    assert names(event_files) == [["launcher.started", "launcher.finished"]]
    assert (event_files.unreadable, event_files.torn) == (2, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": 3},
        {"name": "torchelastic.worker.status.START"},
        {"metadata": []},
        {"timestamp": None},
        {"monotonic": "1"},
        {"monotonic": True},
        {"monotonic": float("inf")},
        {"timestamp": float("nan")},
        {"timestamp": 1e300},
        {"timestamp": 9e11},  # the year 30489
        {"timestamp": -1.0},
        {"monotonic": -1e300},
        {"monotonic": 10**400},
        {"timestamp": 10**400},
    ],
)
def test_lines_that_are_not_events(runs, fields):
    agent = runs.agent("a").start(0)
    path = agent.write()
    with path.open("a") as file:
        file.write(json.dumps({**json.loads(agent.lines[0]), **fields}) + "\n")
    event_files = runs.read()
    only(event_files)
    assert event_files.unreadable == 1


def test_values_that_are_not_plain_are_ignored(runs):
    agent = runs.agent("a").tell(0, "restart", reason=["x"], cause={"a": 1}, max_restarts=2)
    agent.write()
    _, record = only(runs.read())
    assert "reason" not in record.metadata
    assert "cause" not in record.metadata
    assert record.number("max_restarts") == 2


@pytest.mark.parametrize("value", [10**400, -(10**400), 2**53, 1e308, 1e13, True, "5", [5]])
def test_absurd_numbers_are_ignored(runs, value):
    """plaunch writes no number as large, and the charts could not draw it."""
    runs.agent("a").tell(0, "restart", seconds=value, world_size=value, exit_code=value).write()
    _, record = only(runs.read())
    assert record.seconds("seconds") == 0.0
    assert record.number("world_size") == -1
    assert record.code is None


def test_a_reused_process_id_is_another_agent(runs):
    agent = runs.agent("a", 1).start(0).finish(1, "failed", 1).start(2).finish(3, "succeeded", 0)
    agent.write()
    assert names(runs.read()) == [["launcher.started", "launcher.finished"]] * 2


def test_files_in_all_subfolders_are_read(runs):
    runs.agent("a").start(0).write()
    deeper = runs.folder / "copied" / "from" / "b"
    deeper.mkdir(parents=True)
    source = runs.agent("b").start(0).write()
    source.rename(deeper / "b.jsonl")
    (runs.folder / "notes.txt").write_text("not for us")
    (runs.folder / "x.jsonl.gz").write_text("not for us")
    os.mkfifo(runs.folder / "pipe.jsonl")
    event_files = runs.read()
    assert sorted(agent.host for agent in event_files.agents) == ["a", "b"]
    assert event_files.file_count == 2
    assert event_files.unreadable == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "it has no *.jsonl files; launch with --event-log-handler=jsonl --log-dir=DIR"),
        (b"", "1 file named *.jsonl, all empty; did the launcher start?"),
        (b"\x00\x01\nnothing\n{}", "1 file named *.jsonl, but no line in them is an event"),
        (b"[" * 100_000, "no line in them is an event of plaunch"),
    ],
)
def test_no_events(tmp_path, content, words):
    if content is not None:
        (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_folders([str(tmp_path)])
    assert str(caught.value).startswith(f"no events found in {str(tmp_path)!r}: ")
    assert words in str(caught.value)


def test_folders_are_read_together_and_each_launcher_counts_once(runs, tmp_path):
    """A bundle of an earlier attempt has the first events of its launcher again."""
    node_a = runs.agent("a").start(0).join(1, 2, 3, round=0, world=4, nodes=2, rank=0)
    earlier = tmp_path / "bundle"
    earlier.mkdir()
    (earlier / "events.jsonl").write_text(node_a.write().read_text())
    whole = node_a.succeed(9, 10).write()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    node_b = runs.agent("b", rank=1).start(0).join(1, 2, 3, round=0, world=4, nodes=2, rank=1)
    node_b.succeed(9, 10).write().rename(elsewhere / "b.jsonl")

    folders = [str(earlier), str(whole.parent), str(elsewhere)]
    for order in (folders, folders[::-1], [*folders, folders[1]]):
        event_files = read_folders(order)
        found = {agent.host: agent.last("launcher.finished") for agent in event_files.agents}
        assert sorted(found) == ["a", "b"]
        assert None not in found.values()
        assert len(event_files.agents) == 2
        assert {agent.host for agent, _ in event_files.records()} == {"a", "b"}
        assert sum(1 for _ in event_files.records()) == sum(
            agent.count for agent in event_files.agents
        )


def test_a_path_that_is_not_a_folder(tmp_path):
    with pytest.raises(UsageError, match=r"absent' does not exist; give the folder that --log-dir"):
        read_folders([str(tmp_path / "absent")])
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file' is not a folder"):
        read_folders([str(tmp_path / "file")])


@pytest.mark.parametrize("folder", ["absent", "empty"])
def test_messages_name_what_was_given_and_not_where_it_was_unpacked(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    path = str(tmp_path / folder)
    with pytest.raises(UsageError, match=r"'failure-0\.zip'") as caught:
        read_folders([path], {path: "failure-0.zip"})
    assert path not in str(caught.value)


@given(st.binary())
def test_no_bytes_break_the_reader(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("any")
    (folder / "a.jsonl").write_bytes(content)
    with pytest.raises(UsageError, match="no events found"):
        read_folders([str(folder)])


def test_events_written_meanwhile_are_not_read_the_second_time(runs):
    agent = runs.agent("a").start(0).tell(1, "rendezvous.begun")
    path = agent.write()
    event_files = runs.read()
    agent.tell(2, "rendezvous.failed").start(3)
    agent.write()
    runs.agent("b").start(0).write()
    path.with_name("0.jsonl").write_text(agent.lines[0] + "\n")
    assert names(event_files) == [["launcher.started", "rendezvous.begun"]]


def test_events_written_meanwhile_do_not_shift_other_agents(runs):
    """A new launcher in one file does not shift the agents of the following files."""
    first = runs.agent("a").start(0).finish(1, "failed", 1)
    second = runs.agent("b").start(0).finish(1, "succeeded", 0)
    first.write()
    second.write()
    event_files = runs.read()
    first.start(2).finish(3, "succeeded", 0).write()
    third = runs.agent("c")
    third.path = first.path
    third.lines = [*first.lines, *third.start(4).lines]
    third.write()
    found = [
        (agent.host, record.text("host"), record.name) for agent, record in event_files.records()
    ]
    assert found == [
        (host, host, f"plaunch.launcher.{name}")
        for host in ("a", "b")
        for name in ("started", "finished")
    ]


def test_memory_per_event_is_small(runs):
    """Little is kept of the events of workers; keeping them all takes 3 kB each."""
    agent = runs.agent("a").start(0, workers=100)
    for number in range(20):
        at = 10.0 * number
        agent.join(at, at + 1, at + 2, round=number, world=100, nodes=1, rank=0)
        agent.stop_all(at + 9)
    agent.finish(200, "failed", 1).write()
    tracemalloc.start()
    builder, event_files = runs.builder()
    summary = builder.create_summary()
    table = create_table(event_files, builder, max_events=100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    count = event_files.agents[0].count
    assert count > 4000
    assert len(summary.lives) == 2000
    assert table.left_out == count - 100
    assert peak < 500 * count
