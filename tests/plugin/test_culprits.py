"""Whose code has failed, or ends the process."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
import types

import pytest
from plaunch.errors import PluginError
from plaunch.plugin.culprits import Culprits

from helpers.programs import run_python


def raised_by(name: str, body: str = "raise ValueError('no')") -> Exception:
    """The error of a function of a module of that name."""
    made = types.ModuleType(name)
    exec(f"import json\ndef fail(): {body}", made.__dict__)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        made.fail()
    return caught.value


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
    assert culprits.of_error(raised_by(name)) == RAISERS[name]


def test_who_has_called_what_raised(culprits) -> None:
    error = raised_by("alone", "json.loads('{')")
    assert isinstance(error, json.JSONDecodeError)
    assert culprits.of_error(error) == "plugin 'alone'"


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("acme.plugins.more", "plugin 'more'"),
        ("acme.plugins.more.deep", "plugin 'more'"),
        ("acme.plugins.hooks", "plugin 'acme'"),
        ("acme.plugins.shared", "plugin 'acme'"),
    ],
)
def test_each_plugin_of_a_package_stands_for_itself(culprits, name, who) -> None:
    culprits.note("acme.plugins.more", "plugin 'more'")
    assert culprits.of_error(raised_by(name)) == who


@pytest.mark.parametrize(
    ("name", "who"), [("shop.acme.deep", "plugin 'acme'"), ("shop.protocol", None)]
)
def test_a_namespace_package_is_no_plugins(tmp_path, monkeypatch, name, who) -> None:
    for folder in ("shop/acme", "shop"):
        (tmp_path / folder).mkdir(exist_ok=True, parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "shop", importlib.import_module("shop"))
    culprits = Culprits()
    culprits.note("shop.acme", "plugin 'acme'")
    assert culprits.of_error(raised_by(name)) == who


def test_sys_exit_of_a_plugin_is_its_failure(culprits) -> None:
    alone = types.ModuleType("alone")
    exec("def fail(): raise SystemExit('no driver')", alone.__dict__)
    with (
        pytest.raises(PluginError, match=r"^plugin 'alone' has failed: SystemExit: no driver$"),
        culprits.refusing_exits(),
    ):
        alone.fail()


def test_sys_exit_of_a_program_is_its_wish(culprits) -> None:
    with pytest.raises(SystemExit), culprits.refusing_exits():
        sys.exit("enough")


EXITS = """\
import os, sys, types
from plaunch.plugin.culprits import explained_culprits
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
        (True, "acme.end(7)", 110, True),
        (True, "acme.end(0)", 110, True),
        (True, "os.environ['PLAUNCH_EXIT_CODE'] = 'torchrun'; acme.end(0)", 1, True),
        (True, "os._exit(7)", 7, False),
        (False, "acme.end(7)", 7, False),
        (True, "pid = os.fork() or acme.end(7)\nos._exit(os.waitpid(pid, 0)[1] >> 8)", 7, False),
    ],
    ids=[
        "a plugin's",
        "a plugin's success",
        "as torchrun's",
        "our own",
        "in a program",
        "in a child",
    ],
)
def test_os_exit(owned, end, code, is_said) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PLAUNCH_LAUNCHER"}
    done = run_python("-c", EXITS.format(owned=owned, end=end), env=environ)
    assert done.returncode == code
    said = r"plugin 'acme' has ended the launcher with os\._exit\([07]\), in end \(<string>:2\)"
    assert bool(re.match(said, done.stderr)) == is_said
    assert is_said or done.stderr == ""


SIGNALLED = """\
import os, signal, sys, types
from plaunch.cli import entry
from plaunch.plugin.culprits import explained_culprits
os.environ["PLAUNCH_LAUNCHER"] = str(os.getpid())
explained_culprits().note("acme", "plugin 'acme'")
entry._end_at_signals()
acme = types.ModuleType("acme")
exec("import os\\ndef work(signum): os.kill(os.getpid(), signum)", acme.__dict__)
acme.work(signal.SIGTERM)
"""


def test_a_signal_that_ends_the_first_process_is_not_the_plugins_that_runs() -> None:
    done = run_python("-c", SIGNALLED)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")
