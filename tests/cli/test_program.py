"""From how a launch ended to what is said of it; real launches are in e2e."""

from __future__ import annotations

import os
import sys
import types

import pytest
from plaunch.cli import program
from plaunch.errors import ExitCode, PluginError
from plaunch.plugin.culprits import Culprits


@pytest.fixture
def manager():
    culprits = Culprits()
    culprits.note("acme", "plugin 'acme'")
    return types.SimpleNamespace(culprits=culprits)


def acme(source):
    module = types.ModuleType("acme")
    exec(f"def do(): {source}", module.__dict__)
    return module.do


@pytest.mark.parametrize("source", ["raise SystemExit(0)", "raise ValueError(0)"])
def test_what_a_plugin_raises_names_it(manager, source):
    with (
        pytest.raises(PluginError, match=r"^plugin 'acme' failed: [A-Za-z]*: 0$"),
        program._naming_culprits(manager),
    ):
        acme(source)()


def test_an_error_of_ours_stays_what_it_is(manager):
    with pytest.raises(ValueError, match="ours"), program._naming_culprits(manager):
        raise ValueError("ours")


@pytest.mark.parametrize("has_culprits", [True, False])
def test_nobodys_sys_exit_is_no_success_of_the_command_line(manager, monkeypatch, has_culprits):
    monkeypatch.setenv("PLAUNCH_LAUNCHER", str(os.getpid()))
    manager.culprits = manager.culprits if has_culprits else None
    with (
        pytest.raises(PluginError, match=r"called sys.exit\(0\)"),
        program._naming_culprits(manager),
    ):
        sys.exit(0)


def test_a_program_that_launches_may_end_itself(manager):
    with pytest.raises(SystemExit), program._naming_culprits(manager):
        sys.exit(0)


def test_an_error_that_cannot_be_told_is_told(monkeypatch, capsys):
    class Mute(Exception):
        def __str__(self):
            raise KeyError("text")

    def run(argv, *, plugins):
        raise Mute

    monkeypatch.setattr(program, "run", run)
    assert program.main([]) == ExitCode.INTERNAL
    assert "internal error: Mute: <its text cannot be had: KeyError>" in capsys.readouterr().err
