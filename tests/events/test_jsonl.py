"""The event handler `jsonl`."""

from __future__ import annotations

import errno
import json
import os

import pytest
from plaunch.errors import UsageError
from plaunch.events import Event, EventHandler, EventSource
from plaunch.plugin import PluginContext
from plaunch_events.jsonl import JsonlEventHandler, parse_size


def create(path=None, run_dir=None, log_dir=None, **options):
    if path is not None:
        options["path"] = str(path)
    context = PluginContext(
        run_id="job", role="r", host="node/7", log_dir=log_dir, run_dir=run_dir, options=options
    )
    return JsonlEventHandler(context)


def write(path, *written, **options):
    """Write events of these names with a new handler."""
    handler = create(path, **options)
    for name in written:
        handler.handle(event(name))
    handler.close()


def event(name="x", **metadata):
    return Event(name, EventSource.AGENT, 1.5, metadata, 2.5)


def names(path):
    return [json.loads(line)["name"] for line in path.read_text().splitlines()]


def test_each_event_is_written_at_once_as_one_line(tmp_path):
    path = tmp_path / "deep" / "events.jsonl"
    handler = create(path)
    assert isinstance(handler, EventHandler)
    assert not path.parent.exists()
    recorded = event(text="two\nlines \ud800 \u2028")
    handler.handle(recorded)
    assert Event.deserialize(path.read_text()) == recorded
    handler.handle(event("y"))
    handler.close()
    assert names(path) == ["x", "y"]


def test_the_place_in_the_runs_folder(tmp_path):
    handler = create(run_dir=str(tmp_path / "run"), log_dir=str(tmp_path))
    assert handler.path == str(tmp_path / "run" / "events" / f"node_7-{os.getpid()}.jsonl")
    assert create(log_dir=str(tmp_path)).path.startswith(str(tmp_path / "events"))


def test_an_existing_file_is_appended_to(tmp_path):
    path = tmp_path / "e"
    path.write_text('{"name": "before"}\n{"name": "to')
    write(path, "x")
    lines = path.read_text().splitlines()
    assert lines[:2] == ['{"name": "before"}', '{"name": "to']
    assert json.loads(lines[2])["name"] == "x"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give --log-dir, or --event-conf jsonl.path=FILE"),
        ({"path": "e", "max_bytes": "much"}, "jsonl.max_bytes='much'"),
        ({"path": "e", "max_bytes": "-1"}, "jsonl.max_bytes='-1'"),
        ({"path": "e", "keep": "some"}, "jsonl.keep='some'"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(UsageError, match=message):
        create(**options)


@pytest.mark.parametrize(
    ("keep", "files"),
    [
        ("2", {"e": ["6"], "e.1": ["4", "5"], "e.2": ["2", "3"]}),
        ("0", {"e": ["6"]}),
        ("9", {"e": ["6"], "e.1": ["4", "5"], "e.2": ["2", "3"], "e.3": ["0", "1"]}),
    ],
)
def test_rotation_keeps_the_newest(tmp_path, keep, files):
    path = tmp_path / "e"
    length = len(event("0").serialize()) + 1
    write(path, *map(str, range(7)), max_bytes=str(2 * length), keep=keep)
    assert {file.name: names(file) for file in tmp_path.iterdir()} == files


def test_a_number_of_files_that_is_never_reached_costs_nothing(tmp_path, monkeypatch):
    asked = []
    exists = os.path.exists

    def counted(path):
        asked.append(path)
        assert len(asked) < 100
        return exists(path)

    monkeypatch.setattr(os.path, "exists", counted)
    write(tmp_path / "e", *map(str, range(4)), max_bytes="1", keep="1000000000")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["e", "e.1", "e.2", "e.3"]


def test_a_full_file_of_an_earlier_launch_is_rotated_too(tmp_path):
    path = tmp_path / "e"
    for _ in range(2):
        write(path, "long" * 20, max_bytes="100")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["e", "e.1"]


@pytest.mark.parametrize(
    ("text", "size"), [("7", 7), ("2k", 2048), ("1M", 1 << 20), ("1g", 1 << 30)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


class Disk:
    """`os.write` on a file system that is full after some bytes."""

    def __init__(self, monkeypatch, room):
        self.room = room
        self.written = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fd, data):
        if fd < 3:
            return self.written(fd, data)
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        part = data[: self.room]
        self.room -= len(part)
        return self.written(fd, part)


def test_a_full_disk_leaves_no_incomplete_line(tmp_path, monkeypatch, caplog):
    path = tmp_path / "e"
    length = len(event("a").serialize()) + 1
    disk = Disk(monkeypatch, length + 10)
    handler = create(path)
    for name in "abc":
        handler.handle(event(name))
    assert names(path) == ["a"]
    assert path.stat().st_size == length
    assert caplog.text.count("No space left on device") == 1
    disk.room = 10_000
    handler.handle(event("d"))
    handler.close()
    assert names(path) == ["a", "d"]
    assert f"2 events are missing in '{path}'" in caplog.text


def test_partial_writes_are_completed(tmp_path, monkeypatch):
    written = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: written(fd, data[:7]))
    path = tmp_path / "e"
    write(path, "a", "b")
    assert names(path) == ["a", "b"]


def test_an_incomplete_line_that_cannot_be_truncated_is_ended(tmp_path, monkeypatch, caplog):
    path = tmp_path / "e"
    length = len(event("a").serialize()) + 1
    disk = Disk(monkeypatch, length + 10)
    monkeypatch.setattr(os, "ftruncate", lambda fd, size: (_ for _ in ()).throw(OSError("no")))
    handler = create(path)
    for name in "ab":
        handler.handle(event(name))
    disk.room = 10_000
    handler.handle(event("c"))
    handler.close()
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert [json.loads(lines[number])["name"] for number in (0, 2)] == ["a", "c"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_device_that_is_full(caplog):
    write("/dev/full", "x")
    assert "1 events are missing" in caplog.text


def test_a_folder_that_cannot_be_created_is_not_an_error(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    write(tmp_path / "file" / "e", "x", "x")
    assert caplog.text.count("cannot be written") == 1
    assert "2 events are missing" in caplog.text
