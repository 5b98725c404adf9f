"""The first lines of the program; test_ending.py has its last ones."""

from __future__ import annotations

import signal
import sys

import pytest
from plaunch.cli import entry
from plaunch.cli.entry import entry_point


@pytest.fixture(autouse=True)
def restored_environment(monkeypatch):
    """The entry point takes its process for plaunch's own, which the tests' is not.

    It would end it on the spot; it ignores Ctrl-C in the end.
    """
    monkeypatch.setenv("PLAUNCH_LAUNCHER", "")
    monkeypatch.setattr(entry, "_may_be_held", lambda: False)
    monkeypatch.setattr(entry, "end_at_once", sys.exit)
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


def test_the_exit_code_is_mains(monkeypatch):
    monkeypatch.setattr("plaunch.cli.program.main", lambda: 17)
    with pytest.raises(SystemExit) as caught:
        entry_point()
    assert caught.value.code == 17


def test_an_interrupt_during_the_imports_is_one_line(monkeypatch, capsys):
    class Interrupting:
        def find_spec(self, name, path=None, target=None):
            if name == "plaunch.cli.program":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "plaunch.cli.program", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as caught:
        entry_point()
    assert caught.value.code == 130
    assert capsys.readouterr().err == "plaunch: interrupted while no worker was running\n"
