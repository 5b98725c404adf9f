"""What finding and loading plugins costs: nothing heavy is imported on the way."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "asyncio",
    "difflib",
    "email",
    "importlib.metadata",
    "importlib_metadata",
    "json",
    "multiprocessing",
    "tempfile",
    "torch",
    "urllib",
    "uuid",
}

CASES = {
    "the kinds": ("import plaunch.plugin.registry", HEAVY | {"pluggy", "plaunch.agent"}),
    "the public names": ("import plaunch.plugin", HEAVY | {"pluggy", "plaunch.plugin.manager"}),
    "a manager": ("from plaunch.plugin import PluginManager; PluginManager.create()", HEAVY),
    "a hook": ("from plaunch import hookimpl", HEAVY | {"plaunch.plugin.manager"}),
}


@pytest.mark.parametrize(("source", "unwanted"), CASES.values(), ids=CASES)
def test_nothing_heavy_is_imported(source, unwanted) -> None:
    program = f"{source}\nimport sys\nprint(*sorted({unwanted!r} & sys.modules.keys()))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.split() == []


def test_the_default_plugins_bring_nothing_heavy() -> None:
    program = """
import sys
from plaunch.plugin import EVENT_HANDLERS, LOGS_SPECS, RENDEZVOUS, SIGNAL_POLICIES, PluginManager
manager = PluginManager.create()
manager.get(RENDEZVOUS, "static")
manager.get(LOGS_SPECS, "default")
manager.get(EVENT_HANDLERS, "null")
manager.get(SIGNAL_POLICIES, "torchrun")
print(len(manager.selected()))
print(*sorted(unwanted & sys.modules.keys()))
"""
    result = subprocess.run(
        [sys.executable, "-c", f"unwanted = {HEAVY!r}\n{program}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.splitlines() == ["4", ""]


def test_all_public_names_exist() -> None:
    import plaunch.plugin
    import plaunch.testing

    for package in (plaunch.plugin, plaunch.testing):
        for name in package.__all__:
            assert getattr(package, name) is not None
