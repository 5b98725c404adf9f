"""Whose code has failed, or ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest
from plaunch.plugin.culprits import Culprits


def module(name: str, source: str) -> types.ModuleType:
    made = types.ModuleType(name)
    exec(source, made.__dict__)
    return made


@pytest.fixture
def culprits() -> Culprits:
    found = Culprits()
    found.note("acme.plugins.hooks", "plugin 'acme'")
    found.note("alone", "plugin 'alone'")
    return found


RAISERS = {
    "acme.plugins.hooks": "plugin 'acme'",
    "acme.plugins.other.deep": "plugin 'acme'",
    "acme.library": None,
    "acme": None,
    "alone": "plugin 'alone'",
    "alonesome": None,
}


@pytest.mark.parametrize("name", RAISERS)
def test_who_has_raised(culprits, name) -> None:
    raiser = module(name, "def fail(): raise ValueError('no')")
    with pytest.raises(ValueError, match="no") as caught:
        raiser.fail()
    assert culprits.of_error(caught.value) == RAISERS[name]


def test_who_has_called_what_raised(culprits) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        module(
            "alone", "import json\ndef fail(): json.loads('{'[1:] or open('/no/file').read())"
        ).fail()
    assert culprits.of_error(caught.value) == "plugin 'alone'"


def test_the_first_plugin_of_a_package_stands_for_it(culprits) -> None:
    culprits.note("acme.plugins.more", "plugin 'more'")
    with pytest.raises(ValueError, match="no") as caught:
        module("acme.plugins.more", "def fail(): raise ValueError('no')").fail()
    assert culprits.of_error(caught.value) == "plugin 'acme'"


EXITS = """\
import os, sys, types
from plaunch.plugin.exits import explained_culprits
if {owned}:
    os.environ["PLAUNCH_LAUNCHER"] = str(os.getpid())
explained_culprits().note("acme", "plugin 'acme'")
acme = types.ModuleType("acme")
exec("import os\\ndef end(code): os._exit(code)", acme.__dict__)
{end}
"""


@pytest.mark.parametrize(
    ("owned", "end", "code", "is_said"),
    [
        (True, "acme.end(7)", 7, True),
        (True, "os._exit(7)", 7, False),
        (False, "acme.end(7)", 7, False),
        (True, "pid = os.fork() or acme.end(7)\nos._exit(os.waitpid(pid, 0)[1] >> 8)", 7, False),
    ],
    ids=["a plugin's", "our own", "in a program", "in a child"],
)
def test_os_exit(owned, end, code, is_said) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PLAUNCH_LAUNCHER"}
    done = subprocess.run(
        [sys.executable, "-c", EXITS.format(owned=owned, end=end)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    said = "plaunch: plugin 'acme' has ended the launcher with os._exit(7), in end (<string>:2)"
    assert done.stderr.startswith(said) == is_said
    assert is_said or done.stderr == ""
