"""What finding and loading plugins costs: nothing heavy is imported on the way."""

from __future__ import annotations

import pytest

from helpers.programs import run_python

HEAVY = {
    "asyncio",
    "difflib",
    "email",
    "http",
    "importlib.metadata",
    "importlib_metadata",
    "json",
    "multiprocessing",
    "tempfile",
    "torch",
    "urllib",
    "uuid",
}

DEFAULTS = """
from plaunch.plugin import EVENT_HANDLERS, LOGS_SPECS, RENDEZVOUS, SIGNAL_POLICIES, PluginManager
from plaunch.plugin import create_extensions
manager = PluginManager.create()
manager.get(RENDEZVOUS, "static")
manager.get(LOGS_SPECS, "default")
manager.get(EVENT_HANDLERS, "null")
manager.get(SIGNAL_POLICIES, "torchrun")
from plaunch.plugin.context import PluginContext
create_extensions(manager, PluginContext("job", "role", "host"))
names = {p.name for p in manager.selected()}
assert names == {"control", "default", "null", "static", "torchrun"}
"""
CASES = {
    "the kinds": ("import plaunch.plugin.metadata", HEAVY | {"pluggy", "plaunch.agent"}),
    "the public names": ("import plaunch.plugin", HEAVY | {"pluggy", "plaunch.plugin.manager"}),
    "a manager": ("from plaunch.plugin import PluginManager; PluginManager.create()", HEAVY),
    "the default plugins": (DEFAULTS, HEAVY),
    "a hook": ("from plaunch import hookimpl", HEAVY | {"plaunch.plugin.manager"}),
}


@pytest.mark.parametrize(("source", "unwanted"), CASES.values(), ids=CASES)
def test_nothing_heavy_is_imported(source, unwanted) -> None:
    program = f"{source}\nimport sys\nprint(*sorted({unwanted!r} & sys.modules.keys()))"
    assert run_python("-c", program, check=True).stdout.split() == []
