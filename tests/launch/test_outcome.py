"""The end of a launch: the extensions that run after a failure."""

from __future__ import annotations

import sys
import types

import pytest
from plaunch.agent import RunResult, Snapshot, WorkerState
from plaunch.launch.outcome import run_after_failure
from plaunch.plugin import PluginContext, PluginOptions

from helpers.faults import raising

CONTEXT = PluginContext("job", "role", "host")
FAILED = RunResult(WorkerState.FAILED)
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
def after_failure(monkeypatch):
    """Run the factory of a plugin after a failure."""

    def run(create, used=()):
        monkeypatch.setitem(sys.modules, "acme_after", types.SimpleNamespace(create=create))
        declared = PluginOptions("acme", "Acme 1.0", (), "", after_failure="acme_after:create")
        manager = types.SimpleNamespace(plugin_options=lambda: [declared])
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
