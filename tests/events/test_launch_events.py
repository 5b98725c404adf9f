"""Selecting event handlers: names, options, and errors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from plaunch import LaunchConfig
from plaunch.errors import PluginError, UsageError
from plaunch.plugin import PluginContext, PluginManager
from plaunch_events import find_event_handlers, parse_event_conf
from plaunch_events.event_queue import create_event_queues
from plaunch_events.launch_events import parse_names

from helpers.faults import raising
from helpers.hooks import plugin_of


def test_a_comma_in_a_value():
    assert parse_event_conf("a.b=x,,y, c.d.e=1=2") == {"a.b": "x,y", "c.d.e": "1=2"}


@pytest.mark.parametrize("text", ["a.b", "a=1", ".b=1", "a.=1", "a.b=", "a.b=1,a.b=2"])
def test_conf_that_is_malformed(text):
    with pytest.raises(UsageError, match="--event-conf"):
        parse_event_conf(text)


@pytest.mark.parametrize("given", [3, None, [3], [{"a.b": "c"}]])
def test_conf_of_a_wrong_type(given):
    with pytest.raises(UsageError, match="give a mapping of values by"):
        parse_event_conf(given)


def test_names():
    assert parse_names(" console , plaunch:jsonl") == ("console", "plaunch:jsonl")


def test_a_distribution_before_the_name():
    found = find_event_handlers(PluginManager.create(), "plaunch:jsonl", {"jsonl.keep": "2"})
    assert found["plaunch:jsonl"][1] == {"keep": "2"}


def test_a_handler_with_invalid_options():
    odd = raising(AssertionError("it is called"))
    odd.options = "colour"
    plugin = plugin_of(plaunch_event_handlers=lambda: {"odd": odd})
    with pytest.raises(Exception, match="has options = 'colour'"):
        find_event_handlers(PluginManager.create([plugin]), "odd", {"odd.colour": "blue"})


def test_handlers_are_closed_if_another_one_cannot_be_created():
    closed = []
    fail = raising(RuntimeError("no luck"))
    fine = SimpleNamespace(handle=print, close=lambda: closed.append("fine"))
    plugin = plugin_of(plaunch_event_handlers=lambda: {"fine": lambda context: fine, "sick": fail})
    context = PluginContext("run", "role", "host", None, LaunchConfig(1, 1, 1).settings())
    manager = PluginManager.create([plugin])
    found = find_event_handlers(manager, "fine,sick", {})
    with pytest.raises(PluginError, match="no luck"):
        create_event_queues(manager, found, context)
    assert closed == ["fine"]
