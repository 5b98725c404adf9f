from __future__ import annotations

import json

import pytest
from plaunch.errors import UsageError
from plaunch.events import Event, EventSource
from plaunch.plugin import PluginContext
from plaunch_example_plugins.events import AppendEventHandler

CONTEXT = PluginContext(run_id="job", role="default", host="alpha")


def test_events_are_appended_one_in_a_line(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    path.write_text('{"name": "earlier"}\n')
    monkeypatch.setenv("EVENTS_FILE", str(path))
    handler = AppendEventHandler(CONTEXT)
    handler.handle(Event("start", EventSource.WORKER, 1.5, {"text": "two\nlines"}))
    handler.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["name"] for line in lines] == ["earlier", "start"]
    assert lines[1]["metadata"] == {"text": "two\nlines"}
    assert lines[1]["timestamp"] == 1.5


@pytest.mark.parametrize(
    ("value", "message"), [(None, "set the variable EVENTS_FILE"), ("/no/such", "cannot be")]
)
def test_a_missing_or_bad_path_is_refused(monkeypatch, value, message):
    monkeypatch.delenv("EVENTS_FILE", raising=False)
    if value is not None:
        monkeypatch.setenv("EVENTS_FILE", value)
    with pytest.raises(UsageError, match=message):
        AppendEventHandler(CONTEXT)
