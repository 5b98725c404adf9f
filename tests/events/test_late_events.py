"""Events of a launch that are made on demand."""

from __future__ import annotations

import logging
import sys

import pytest
from plaunch import LaunchConfig, elastic_launch, hookimpl
from plaunch.agent import BeforeRendezvous, StateChanged, WorkerState
from plaunch.plugin import extensions
from plaunch.plugin.extensions import EventLog
from plaunch.process import ChildFailedError
from plaunch_events import LateEvents

from helpers.groups import make_group

CONFIG = LaunchConfig(1, 1, 1, run_id="job")
BEGUN = BeforeRendezvous(make_group())
STARTED = StateChanged(make_group(), WorkerState.INIT, WorkerState.HEALTHY)


def events_of(recorded):
    return LateEvents(CONFIG, "train.py", recorded.all)


def names(events):
    return [event.name.removeprefix("plaunch.") for event in events]


def test_each_event_is_returned_once():
    recorded = EventLog()
    late = events_of(recorded)
    assert late.take() == []
    recorded.add(BEGUN)
    assert names(late.take()) == ["launcher.started", "rendezvous.begun"]
    assert late.take() == []
    recorded.add(STARTED)
    recorded.add(None)
    assert names(late.take()) == ["state.changed", "launcher.finished"]
    assert names(events_of(recorded).take())[-2:] == [
        "state.changed",
        "launcher.finished",
    ]


def test_events_have_the_times_of_their_notifications():
    recorded = EventLog()
    recorded.add(BEGUN)
    ((_, wall, monotonic, _),) = recorded.all
    _, begun = events_of(recorded).take()
    assert (begun.timestamp, begun.monotonic) == (wall, monotonic)


def test_the_oldest_events_are_dropped(monkeypatch):
    monkeypatch.setattr(extensions, "MOST_LOGGED", 2)
    recorded = EventLog()
    late = events_of(recorded)
    for what in (BEGUN, BEGUN, STARTED, None):
        recorded.add(what)
    assert [number for number, *_ in recorded.all] == [2, 3]
    assert names(late.take()) == ["launcher.started", "state.changed", "launcher.finished"]


class Polling:
    """Takes the events when it stops, or never."""

    takes_events = False

    def __init__(self, asks):
        self.asks = asks
        self.events = []
        self.was_made = False

    @hookimpl
    def plaunch_extensions(self, context):
        return [self]

    def start(self, control):
        self.control = control

    def handle(self, event):
        pytest.fail("nobody has asked for it")

    def stop(self, result):
        self.was_made = "plaunch_events.stream" in sys.modules
        if self.asks:
            self.events = self.control.take_events()


@pytest.mark.parametrize(("program", "code"), [("/bin/true", 0), ("/bin/false", 1)])
def test_the_last_event_of_a_launch_is_included(program, code):
    asking = Polling(asks=True)
    config = LaunchConfig(1, 1, 1, max_restarts=0)
    try:
        elastic_launch(config, program, plugins=[asking])()
    except ChildFailedError:
        assert code
    assert names(asking.events)[:2] == ["launcher.started", "rendezvous.begun"]
    assert asking.events[-1].metadata["exit_code"] == code


def test_no_events_are_made_without_a_reader(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "plaunch_events"]:
        monkeypatch.delitem(sys.modules, name)
    asking = Polling(asks=False)
    logging.getLogger("plaunch").setLevel(logging.WARNING)  # a log at INFO asks for them
    elastic_launch(LaunchConfig(1, 1, 1), "/bin/true", plugins=[asking])()
    assert not asking.was_made
