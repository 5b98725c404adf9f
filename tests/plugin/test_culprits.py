"""Whose code has raised an exception."""

from __future__ import annotations

import importlib
import json
import sys
import types

import pytest
from plaunch.errors import PluginError
from plaunch.plugin.hooks import Culprits


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
        pytest.raises(PluginError, match=r"^plugin 'alone' failed: SystemExit: no driver$"),
        culprits.refusing_exits(),
    ):
        alone.fail()


def test_sys_exit_of_a_program_is_its_wish(culprits) -> None:
    with pytest.raises(SystemExit), culprits.refusing_exits():
        sys.exit("enough")
