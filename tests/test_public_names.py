"""The lazy packages: every name loads, and none is hidden by a module of the same name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

from helpers.programs import run_python

PACKAGES = [
    "plaunch",
    "plaunch.agent",
    "plaunch.cli",
    "plaunch.plugin",
    "plaunch.process",
    "plaunch.rendezvous",
    "plaunch.testing",
    "plaunch_hang.stacks",
    "plaunch_network",
]


def public_names(package):
    return [name for name in dir(package) if not name.startswith("_")]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_loads(name):
    package = importlib.import_module(name)
    assert public_names(package)
    for public in public_names(package):
        assert getattr(package, public) is not None


@pytest.mark.parametrize("name", PACKAGES)
def test_no_module_has_the_name_of_something_public(name):
    """Importing the module would put it in the place of the thing, depending on who came first."""
    package = importlib.import_module(name)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    for public in set(getattr(package, "__all__", ())) & modules:
        assert inspect.ismodule(getattr(package, public)), "it is what the name means"


@pytest.mark.parametrize("name", PACKAGES)
def test_a_name_that_does_not_exist(name):
    package = importlib.import_module(name)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def test_importing_plaunch_imports_next_to_nothing():
    code = (
        "import sys; before = set(sys.modules); import plaunch; plaunch.__version__; "
        "print(*sorted(m for m in set(sys.modules) - before if 'plaunch' in m))"
    )
    shown = run_python("-c", code, check=True)
    assert shown.stdout.split() == ["plaunch", "plaunch._version", "plaunch.lazy"]
