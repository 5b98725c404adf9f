"""What plugins do though none of their options is given."""

from __future__ import annotations

import sys
import threading
import types

import pytest
from plaunch.agent import RunResult, Snapshot, WorkerState, notifications
from plaunch.launch.occasions import create_listeners, run_after_failure
from plaunch.plugin import PluginContext, PluginOptions
from plaunch.plugin.guard import CallGuard

from helpers.faults import raising
from helpers.groups import make_group

CONTEXT = PluginContext("job", "role", "host")
FAILED = RunResult(WorkerState.FAILED)
FINISHED = notifications.AgentFinished(make_group(), None)
AGENT = types.SimpleNamespace(snapshot=lambda: Snapshot("FAILED", 0, 0, {}, {}))


class Collect:
    """Keeps its calls."""

    takes_events = False

    def __init__(self, context):
        self.calls = [context]

    def start(self, control):
        self.calls.append(control.snapshot())

    def stop(self, result):
        self.calls.append(result)


@pytest.fixture
def manager_of(monkeypatch):
    """The manager of a plugin that declares a factory for an occasion."""

    def declare(occasion, create):
        monkeypatch.setitem(sys.modules, "acme_after", types.SimpleNamespace(create=create))
        declared_by = types.SimpleNamespace(**{occasion: "acme_after:create"})
        declared = PluginOptions("acme", "Acme 1.0", (), "", declared_by)
        return types.SimpleNamespace(plugin_options=lambda: [declared], guard=CallGuard())

    return declare


@pytest.fixture
def after_failure(manager_of):
    """Run the factory of a plugin after a failure."""

    def run(create, used=()):
        manager = manager_of("AFTER_FAILURE", create)
        components = types.SimpleNamespace(context=CONTEXT, used_plugins=used)
        run_after_failure(manager, components, AGENT, FAILED, None)

    return run


def test_an_extension_of_a_plugin_runs_after_a_failure(after_failure):
    created = []
    after_failure(lambda context: created.append(Collect(context)) or created[0])
    assert created[0].calls == [CONTEXT, AGENT.snapshot(), FAILED]


def test_one_whose_option_is_set_ran_from_the_start(after_failure):
    after_failure(pytest.fail, used=["acme"])


@pytest.mark.parametrize("method", ["create", "start", "stop"])
def test_one_that_fails_does_not_hide_the_failure(after_failure, caplog, method):
    def create(context):
        if method == "create":
            raise KeyError("disk")
        extension = Collect(context)
        setattr(extension, method, raising(KeyError("disk")))
        return extension

    after_failure(create)
    assert "plugin 'acme' (Acme 1.0) failed in" in caplog.text
    assert "KeyError: 'disk'" in caplog.text


def test_a_listener_of_a_plugin_is_created_for_slow_stops(manager_of):
    calls = []

    def create(context):
        calls.append(context)
        return calls.append

    (listen,) = create_listeners(manager_of("ON_SLOW_STOP", create), CONTEXT)
    listen(FINISHED)
    listen(FINISHED)
    assert calls == [CONTEXT, FINISHED, FINISHED]
    assert create_listeners(manager_of("AFTER_FAILURE", create), CONTEXT) == []


def test_a_listener_does_not_need_a_thread_for_each_notification(manager_of):
    threads = []  # keeps them, so that no two have the same id

    def create(context):
        return lambda notification: threads.append(threading.current_thread())

    manager = manager_of("ON_SLOW_STOP", create)
    (listen,) = create_listeners(manager, CONTEXT)
    for _ in range(500):
        listen(FINISHED)
    assert len(threads) == 500
    assert len(set(threads)) < 50  # one, unless the machine pauses for longer than it lingers
    manager.guard.rest()
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("is_created", [False, True])
def test_a_listener_that_fails_is_not_called_again(manager_of, caplog, is_created):
    calls = []

    def fail(given):
        calls.append(given)
        raise KeyError("disk")

    create = (lambda context: fail) if is_created else fail
    (listen,) = create_listeners(manager_of("ON_SLOW_STOP", create), CONTEXT)
    listen(FINISHED)
    listen(FINISHED)
    assert calls == [FINISHED if is_created else CONTEXT]
    assert caplog.messages == [
        "plugin 'acme' (Acme 1.0) failed in ON_SLOW_STOP: KeyError: 'disk'; it is not called again"
    ]
