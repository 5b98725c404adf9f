"""Events of a launch that are made when somebody asks for them."""

from __future__ import annotations

import logging
import sys

import pytest
from plaunch import LaunchConfig, elastic_launch, hookimpl
from plaunch.agent import BeforeRendezvous, StateChanged, WorkerState
from plaunch.plugin import late_events
from plaunch.plugin.late_events import LateEvents, LaunchEnd, Memory
from plaunch.process import ChildFailedError
from plaunch_events import Replay

from helpers.groups import make_group

CONFIG = LaunchConfig(1, 1, 1, run_id="job")
BEGUN = BeforeRendezvous(make_group())
STARTED = StateChanged(make_group(), WorkerState.INIT, WorkerState.HEALTHY)


def events_of(memory):
    return LateEvents(memory, lambda listener: Replay(CONFIG, "train.py", listener))


def names(events):
    return [event.name.removeprefix("plaunch.") for event in events]


def test_each_is_had_once():
    memory = Memory()
    late = events_of(memory)
    assert late.take() == []
    memory.add(BEGUN)
    assert names(late.take()) == ["launcher.started", "rendezvous.begun"]
    assert late.take() == []
    memory.add(STARTED)
    memory.add(LaunchEnd(None))
    assert names(late.take()) == ["state.changed", "launcher.finished"]
    assert names(events_of(memory).take())[-2:] == [
        "state.changed",
        "launcher.finished",
    ]


def test_they_are_of_when_it_was_told():
    memory = Memory()
    memory.add(BEGUN)
    (told,) = memory.since(0)
    _, begun = events_of(memory).take()
    assert (begun.timestamp, begun.monotonic) == (told.wall, told.monotonic)


def test_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(late_events, "_MOST_KEPT", 2)
    memory = Memory()
    late = events_of(memory)
    for told in (BEGUN, BEGUN, STARTED, LaunchEnd(None)):
        memory.add(told)
    assert [told.number for told in memory.since(0)] == [2, 3]
    assert names(late.take()) == ["launcher.started", "state.changed", "launcher.finished"]


class Asking:
    """Asks at the end, if at all."""

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
def test_a_launch_has_them_to_its_very_end(program, code):
    asking = Asking(asks=True)
    config = LaunchConfig(1, 1, 1, max_restarts=0)
    try:
        elastic_launch(config, program, plugins=[asking])()
    except ChildFailedError:
        assert code
    assert names(asking.events)[:2] == ["launcher.started", "rendezvous.begun"]
    assert asking.events[-1].metadata["exit_code"] == code


def test_none_are_made_that_nobody_asks_for(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "plaunch_events"]:
        monkeypatch.delitem(sys.modules, name)
    asking = Asking(asks=False)
    logging.getLogger("plaunch").setLevel(logging.WARNING)  # a log at INFO asks for them
    elastic_launch(LaunchConfig(1, 1, 1), "/bin/true", plugins=[asking])()
    assert not asking.was_made
