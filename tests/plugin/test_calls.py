"""Code of plugins that does not return: named, and not waited for without a limit."""

from __future__ import annotations

import re
import threading

import pytest
from plaunch.errors import ExitCode, PluginError, UsageError
from plaunch.plugin import calls
from plaunch.plugin.context import PluginContext
from plaunch.plugin.registry import KINDS, LOGS_SPECS
from plaunch.process import LogsSpecs
from plaunch.testing import plugin_manager

from helpers.faults import raising
from helpers.hooks import NO_OTHERS, plugin_of
from helpers.waiting import BOUND

WHO = "plugin 'Plugin' (module helpers.hooks)"
BY_NAME = {kind.name: kind for kind in KINDS}


def hangs_in(hook: str, gate) -> object:
    return plugin_of(**{hook: lambda: gate.wait(BOUND)})


@pytest.mark.parametrize("name", BY_NAME)
def test_a_hook_that_offers_and_does_not_return_is_named(monkeypatch, gate, name) -> None:
    monkeypatch.setattr(calls, "HOOK_BOUND", 0.01)
    kind = BY_NAME[name]
    manager = plugin_manager(hangs_in(kind.hook, gate))
    with pytest.raises(PluginError) as caught:
        manager.get(kind, "x")
    assert caught.value.exit_code == ExitCode.PLUGIN
    assert str(caught.value) == (
        f"{WHO} has not returned from {kind.hook} within 0.01 s; fix what it waits for, or block "
        "it with -p no:NAME"
    )


def test_a_hook_that_does_not_return_its_extensions_is_named(monkeypatch, gate) -> None:
    monkeypatch.setattr(calls, "HOOK_BOUND", 0.01)
    manager = plugin_manager(hangs_in("plaunch_extensions", gate), words=NO_OTHERS)
    with pytest.raises(PluginError, match=re.escape(f"{WHO} has not returned from plaunch_ext")):
        manager.create_extensions(PluginContext("job", "role", "host"))


def test_extensions_that_are_made_one_after_the_other_are_waited_for_as_well(
    monkeypatch, gate
) -> None:
    """A hook may return an iterator, which runs the plugin's code once it is asked."""
    monkeypatch.setattr(calls, "HOOK_BOUND", 0.01)
    plugin = plugin_of(plaunch_extensions=lambda: (gate.wait(BOUND) for _ in range(1)))
    manager = plugin_manager(plugin, words=NO_OTHERS)
    with pytest.raises(PluginError, match="has not returned from plaunch_extensions"):
        manager.create_extensions(PluginContext("job", "role", "host"))


class Specs(LogsSpecs):
    """A logs spec that is never made."""


def given(kind):
    """A manager whose name `x` gives a thing, and how messages call that."""
    thing = Specs if kind is LOGS_SPECS else raising(AssertionError())
    manager = plugin_manager(plugin_of(**{kind.hook: lambda: {"x": thing}}))
    manager.get(kind, "x")
    return manager, f"{kind.label} 'x' ({kind.flag}) of module helpers.hooks"


@pytest.mark.parametrize("name", BY_NAME)
def test_what_a_name_gives_and_does_not_return_is_named(gate, name) -> None:
    kind = BY_NAME[name]
    manager, who = given(kind)
    with pytest.raises(PluginError) as caught:
        manager.call(kind, "x", lambda: gate.wait(BOUND), 0.01)
    function = "Specs" if kind is LOGS_SPECS else "fail"
    assert str(caught.value) == (
        f"{who} has not returned from {function} within 0.01 s; fix what it waits for, or select "
        f"another {kind.label}"
    )


@pytest.mark.parametrize("name", BY_NAME)
def test_what_a_name_gives_is_called_on_another_thread(name) -> None:
    manager, _ = given(BY_NAME[name])
    thread = manager.call(BY_NAME[name], "x", threading.current_thread)
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (ValueError("no"), PluginError, "of module helpers.hooks failed: ValueError: no$"),
        (SystemExit(0), PluginError, "of module helpers.hooks failed in fail: SystemExit: 0$"),
        (UsageError("bad port"), UsageError, "^bad port$"),
    ],
)
def test_what_a_name_gives_and_fails_is_named(error, expected, message) -> None:
    kind = BY_NAME["rendezvous"]
    manager, _ = given(kind)
    with pytest.raises(expected, match=message):
        manager.call(kind, "x", raising(error))


def test_a_long_wait_is_not_silent(monkeypatch, gate, caplog) -> None:
    monkeypatch.setattr(calls, "NOTICE", 0.01)
    with pytest.raises(PluginError):
        calls.bounded_call(WHO, "connect", lambda: gate.wait(BOUND), 0.02)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{WHO} has not returned from connect within 0.01 s; the launcher waits up to 0.02 s for it"
    )


def test_a_wait_that_is_over_is_not_announced(monkeypatch, gate, caplog) -> None:
    monkeypatch.setattr(calls, "NOTICE", 0.01)
    with pytest.raises(PluginError):
        calls.bounded_call(WHO, "connect", lambda: gate.wait(BOUND), 0.01)
    assert not caplog.records
