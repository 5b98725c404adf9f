"""The page about events matches the code."""

from __future__ import annotations

import pathlib
import re

import pytest
from plaunch.events import Event
from plaunch_events import COMMON_KEYS, SCHEMA
from plaunch_events.console import ConsoleEventHandler
from plaunch_events.jsonl import JsonlEventHandler
from plaunch_events.otel import OtelEventHandler

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "events.md").read_text()


def rows(heading):
    """The cells of the table whose first column is called `heading`."""
    _, found, rest = PAGE.partition(f"| {heading} |")
    assert found
    lines = rest.split("\n")[2:]
    table = []
    for line in lines:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split(" |")])
    return table


def test_every_event_and_no_other_has_a_row():
    assert [row[0].strip("`") for row in rows("event")] == [*SCHEMA]


def without_remarks(cell):
    return re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", cell))


@pytest.mark.parametrize("name", SCHEMA)
def test_every_key_of_an_event_is_in_its_row_in_order(name):
    (row,) = (row for row in rows("event") if row[0] == f"`{name}`")
    keys = without_remarks(row[2])
    assert sorted(keys) == sorted(SCHEMA[name].keys)


def test_common_keys():
    assert [row[0].strip("`") for row in rows("key")] == [*COMMON_KEYS]


def test_fields():
    fields = [row[0].strip("`") for row in rows("field")]
    assert fields == [*Event.__dataclass_fields__]


def test_handlers_and_their_options():
    documented = {row[0].strip("`"): {*re.findall(r"`(\w+)`", row[2])} for row in rows("handler")}
    assert documented == {
        "null": set(),
        "console": set(ConsoleEventHandler.options),
        "jsonl": set(JsonlEventHandler.options),
        "otel": set(OtelEventHandler.options),
    }
