"""Hooks that tell: order, isolation, and the bound on their time."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading

import pytest
from plaunch.agent.notifications import BeforeRendezvous, WorkersStarted
from plaunch.plugin import hookimpl, notifier
from plaunch.plugin.manager import PluginManager

from helpers.faults import raising
from helpers.groups import make_group
from helpers.waiting import BOUND

MOMENT = BeforeRendezvous(make_group())
WHO = "plugin 'a' (module tests.plugin.test_notifier)"
OTHER = WorkersStarted(make_group())


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def manager(caplog):
    caplog.set_level(logging.WARNING, "plaunch")

    def create(*plugins: object, **environ: str) -> PluginManager:
        return PluginManager.create(plugins, environ=environ, first_party_only=True)

    return create


def listener(name: str, told: list[str], action=None, **marks: bool):
    """A plugin called `name` that is told of two things, and does `action` at the first."""

    def before(self, group):
        told.append(name)
        if action is not None:
            action()

    def started(self, group):
        told.append(f"{name} started")

    hooks = {"plaunch_before_rendezvous": before, "plaunch_workers_started": started}
    marker = hookimpl(**marks) if marks else hookimpl
    return type(name, (), {hook: marker(function) for hook, function in hooks.items()})()


@pytest.mark.parametrize(
    ("marks", "order"),
    [({}, "abc"), ({"a": {"trylast": True}, "c": {"tryfirst": True}}, "cba")],
)
def test_the_order_is_that_of_names_but_for_marks_of_pluggy(manager, told, marks, order) -> None:
    manager(*(listener(name, told, **marks.get(name, {})) for name in "bca")).notify(MOMENT)
    assert told == list(order)


def test_nobody_listens(manager) -> None:
    manager().notify(MOMENT)


@pytest.mark.parametrize("error", [RuntimeError("two\nlines"), SystemExit(3)], ids=repr)
def test_a_plugin_that_fails_is_reported_and_switched_off(manager, told, caplog, error) -> None:
    tested = manager(listener("a", told, raising(error)), listener("b", told))
    for _ in range(3):
        tested.notify(MOMENT)
    assert told == ["a", "b", "b", "b"]
    (record,) = caplog.records
    message = record.getMessage()
    assert f"{WHO} failed in plaunch_before_rendezvous" in message
    assert type(error).__name__ in message
    assert "\n" not in message
    assert record.exc_info is None


def test_an_error_that_cannot_be_told_is_none_of_the_agents(manager, told, caplog) -> None:
    class Mute(Exception):
        def __str__(self):
            raise KeyError("text")

    manager(listener("a", told, raising(Mute())), listener("b", told)).notify(MOMENT)
    assert told == ["a", "b"]
    (record,) = caplog.records
    assert "the job goes on: Mute: <its text is not available: KeyError>" in record.getMessage()


def test_other_hooks_of_a_failed_plugin_stay_and_so_does_it_in_another_launch(
    manager, told
) -> None:
    plugin = listener("a", told, raising(RuntimeError()))
    tested = manager(plugin)
    tested.notify(MOMENT)
    tested.notify(OTHER)
    assert told == ["a", "a started"]
    manager(plugin).notify(MOMENT)
    assert told[2:] == ["a"]


def test_the_traceback_is_logged_on_request(manager, told, caplog) -> None:
    error = RuntimeError("why")
    manager(listener("a", told, raising(error)), PLAUNCH_DEBUG="1").notify(MOMENT)
    (record,) = caplog.records
    assert record.exc_info[1] is error


def test_ctrl_c_is_heard_while_a_plugin_is_waited_for(manager, told, caplog, gate) -> None:
    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        gate.wait(BOUND)

    tested = manager(listener("a", told, interrupt))
    with pytest.raises(KeyboardInterrupt):
        tested.notify(MOMENT)
    assert not caplog.records


def test_a_plugin_that_does_not_return_is_left_to_itself(
    manager, told, caplog, monkeypatch, gate
) -> None:
    monkeypatch.setattr(notifier, "TIME_BOUND", 0.01)
    threads = []

    def stand():
        threads.append(threading.current_thread())
        gate.wait(BOUND)

    tested = manager(listener("a", told, stand), listener("b", told))
    assert tested.left_behind() == []
    tested.notify(MOMENT)
    monkeypatch.setattr(notifier, "TIME_BOUND", BOUND)
    tested.notify(MOMENT)
    tested.notify(OTHER)
    assert told == ["a", "b", "b", "b started"]  # no two hooks of one plugin at once
    assert tested.left_behind() == [WHO]
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{WHO} has not returned from plaunch_before_rendezvous within 0.01 s; plaunch does not "
        "wait for it, calls none of its hooks until it returns, and does not call this hook "
        "again; the job goes on"
    )
    gate.set()
    threads[0].join()
    tested.notify(MOMENT)
    tested.notify(OTHER)
    assert told[4:] == ["b", "a started", "b started"]
    assert tested.left_behind() == []


def test_one_that_returns_after_all_is_not_called_again(
    manager, told, caplog, monkeypatch, gate
) -> None:
    monkeypatch.setattr(notifier, "TIME_BOUND", 0.01)
    ended = threading.Event()

    def dawdle():
        gate.wait(BOUND)
        ended.set()
        raise RuntimeError("too late to be heard")

    tested = manager(listener("a", told, dawdle))
    tested.notify(MOMENT)
    gate.set()
    assert ended.wait(BOUND)
    tested.notify(MOMENT)
    assert told == ["a"]
    assert len(caplog.records) == 1


def test_hooks_run_on_another_thread_that_is_gone_afterwards(manager, told) -> None:
    threads = []
    tested = manager(listener("a", told, lambda: threads.append(threading.current_thread())))
    tested.notify(MOMENT)
    (thread,) = threads
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_what_a_hook_starts_can_be_ended(manager, told, caplog) -> None:
    codes = []

    def start():
        child = subprocess.Popen(["sleep", "60"])
        child.terminate()
        codes.append(child.wait(BOUND))

    manager(listener("a", told, start)).notify(MOMENT)
    assert codes == [-signal.SIGTERM]


@pytest.mark.parametrize(
    "why", ["can't start new thread", "can't create new thread at interpreter shutdown"]
)
def test_without_threads_nobody_is_told(manager, told, monkeypatch, caplog, why) -> None:
    tested = manager(listener("a", told), listener("b", told))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raising(RuntimeError(why)))
        tested.notify(MOMENT)
        tested.notify(OTHER)
    assert told == []
    (record,) = caplog.records
    assert (
        f"{WHO} was not notified (plaunch_before_rendezvous), and neither was any other plugin: "
        in record.getMessage()
    )
    tested.notify(MOMENT)
    assert told == ["a", "b"]
