"""From how a launch ended to what is said of it; real launches are in e2e."""

from __future__ import annotations

import errno
import os
import sys
import types

import pytest
from plaunch.cli import concluded
from plaunch.cli.invocation import Invocation
from plaunch.cli.parser import OptionTable
from plaunch.errors import ExitCode, PluginError

from helpers.faults import raising
from helpers.programs import run_python

# The modules of plaunch that a launch of an empty program imports: 146, and a few more in a launch
# that takes a second, for the log.
MOST_MODULES = 150


@pytest.fixture
def invocation():
    invocation = Invocation(None, OptionTable())
    invocation.create_manager().culprits.note("acme", "plugin 'acme'")
    return invocation


def acme(source):
    module = types.ModuleType("acme")
    exec(f"def do(): {source}", module.__dict__)
    return module.do


@pytest.mark.parametrize("source", ["raise SystemExit(0)", "raise ValueError(0)"])
def test_what_a_plugin_raises_names_it(invocation, source):
    with (
        pytest.raises(PluginError, match=r"^plugin 'acme' failed in do: [A-Za-z]*: 0$"),
        invocation.naming_plugins(),
    ):
        acme(source)()


def test_an_error_of_plaunch_itself_is_not_converted(invocation):
    with pytest.raises(ValueError, match="ours"), invocation.naming_plugins():
        raise ValueError("ours")


def test_sys_exit_in_the_launcher_is_an_error(invocation, monkeypatch):
    monkeypatch.setenv("PLAUNCH_LAUNCHER", str(os.getpid()))
    with (
        pytest.raises(PluginError, match=r"called sys.exit\(0\)"),
        invocation.naming_plugins(),
    ):
        sys.exit(0)


def test_a_program_that_launches_may_end_itself(invocation):
    with pytest.raises(SystemExit), invocation.naming_plugins():
        sys.exit(0)


def test_an_error_without_a_text_is_reported(capsys):
    class Mute(Exception):
        def __str__(self):
            raise KeyError("text")

    assert concluded(raising(Mute())) == ExitCode.INTERNAL
    assert "internal error: Mute: <its text is not available: KeyError>" in capsys.readouterr().err


@pytest.mark.parametrize("debug", ["0", "1"])
def test_too_many_open_files_are_no_bug(monkeypatch, capsys, debug):
    def launch():
        try:
            raise OSError(errno.EMFILE, "Too many open files", "capacity.py")
        finally:
            raise KeyError("what was open")

    monkeypatch.setenv("PLAUNCH_DEBUG", debug)
    assert concluded(launch) == ExitCode.INTERNAL
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith(
        "plaunch: too many open files; raise the limit of open files (ulimit"
    )
    assert (len(said) > 1) == (debug == "1")


def test_an_empty_launch_imports_few_modules_of_plaunch():
    code = (
        "import sys; from plaunch.cli import main; main(['--no-python', 'true']);"
        "print(*sorted(name for name in sys.modules if name.startswith('plaunch')))"
    )
    found = run_python("-c", code, check=True).stdout.split()
    assert len(found) <= MOST_MODULES, "\n".join(found)
