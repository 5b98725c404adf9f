"""Hooks that tell: order, isolation, and the bound on their time."""

from __future__ import annotations

import logging
import signal

import pytest
from plaunch.agent.moments import BeforeRendezvous, WorkersStarted
from plaunch.errors import SignalException
from plaunch.plugin import hookimpl
from plaunch.plugin.manager import PluginManager

from helpers.clock import Clock
from helpers.groups import make_group

MOMENT = BeforeRendezvous(make_group())
OTHER = WorkersStarted(make_group())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def manager(clock, caplog):
    caplog.set_level(logging.WARNING, "plaunch")

    def create(*plugins: object, **environ: str) -> PluginManager:
        return PluginManager.create(plugins, environ=environ, first_party_only=True, clock=clock)

    return create


def listener(name: str, told: list[str], action=None, **marks: bool):
    """A plugin called `name` that is told of two moments, and does `action` at the first."""

    def before(self, group):
        told.append(name)
        if action is not None:
            action()

    def started(self, group):
        told.append(f"{name} started")

    hooks = {"plaunch_before_rendezvous": before, "plaunch_workers_started": started}
    marker = hookimpl(**marks) if marks else hookimpl
    return type(name, (), {hook: marker(function) for hook, function in hooks.items()})()


def fail(error: BaseException):
    def action():
        raise error

    return action


def test_plugins_are_told_in_the_order_of_their_names(manager, told) -> None:
    manager(*(listener(name, told) for name in "bca")).notify(MOMENT)
    assert told == ["a", "b", "c"]


def test_marks_of_pluggy_change_the_order(manager, told) -> None:
    manager(
        listener("a", told, trylast=True),
        listener("b", told),
        listener("c", told, tryfirst=True),
    ).notify(MOMENT)
    assert told == ["c", "b", "a"]


def test_nobody_listens(manager) -> None:
    manager().notify(MOMENT)


@pytest.mark.parametrize("error", [RuntimeError("two\nlines"), SystemExit(3)], ids=repr)
def test_a_plugin_that_fails_is_reported_and_switched_off(manager, told, caplog, error) -> None:
    tested = manager(listener("a", told, fail(error)), listener("b", told))
    for _ in range(3):
        tested.notify(MOMENT)
    assert told == ["a", "b", "b", "b"]
    (record,) = caplog.records
    message = record.getMessage()
    assert "plugin code:a failed in plaunch_before_rendezvous" in message
    assert type(error).__name__ in message
    assert "\n" not in message
    assert record.exc_info is None


def test_other_hooks_of_a_failed_plugin_stay(manager, told) -> None:
    tested = manager(listener("a", told, fail(RuntimeError())))
    tested.notify(MOMENT)
    tested.notify(OTHER)
    assert told == ["a", "a started"]


def test_the_traceback_is_logged_on_request(manager, told, caplog) -> None:
    error = RuntimeError("why")
    manager(listener("a", told, fail(error)), PLAUNCH_DEBUG="1").notify(MOMENT)
    (record,) = caplog.records
    assert record.exc_info[1] is error


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SignalException("stop", signal.SIGTERM)], ids=repr
)
def test_an_interruption_is_nobodys_failure(manager, told, caplog, error) -> None:
    tested = manager(listener("a", told, fail(error)))
    with pytest.raises(type(error)):
        tested.notify(MOMENT)
    assert not caplog.records


TIMES = {"at once": (0.0, True), "at the bound": (1.0, True), "above the bound": (1.25, False)}


@pytest.mark.parametrize(("seconds", "stays"), TIMES.values(), ids=TIMES)
def test_a_plugin_that_takes_too_long_is_switched_off(
    manager, clock, told, caplog, seconds, stays
) -> None:
    def dawdle():
        clock.now += seconds

    tested = manager(listener("a", told, dawdle), listener("b", told))
    tested.notify(MOMENT)
    tested.notify(MOMENT)
    assert told == (["a", "b", "a", "b"] if stays else ["a", "b", "b"])
    messages = [record.getMessage() for record in caplog.records]
    if stays:
        assert messages == []
    else:
        (message,) = messages
        assert "plugin code:a kept the agent waiting for 1.2 s in plaunch_before" in message


def test_the_time_of_one_plugin_is_not_held_against_another(manager, clock, told) -> None:
    def dawdle():
        clock.now += 0.8

    tested = manager(*(listener(name, told, dawdle) for name in "abc"))
    tested.notify(MOMENT)
    tested.notify(MOMENT)
    assert told == ["a", "b", "c"] * 2


def test_a_plugin_that_is_slow_and_fails_is_reported_once(manager, clock, told, caplog) -> None:
    def both():
        clock.now += 5
        raise RuntimeError("slow and wrong")

    manager(listener("a", told, both)).notify(MOMENT)
    assert ["slow and wrong" in record.getMessage() for record in caplog.records] == [True]


def test_switching_off_lasts_for_one_launch(manager, told) -> None:
    plugin = listener("a", told, fail(RuntimeError()))
    manager(plugin).notify(MOMENT)
    manager(plugin).notify(MOMENT)
    assert told == ["a", "a"]
