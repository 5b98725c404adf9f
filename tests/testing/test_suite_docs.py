"""docs/testing-plugins.md names every suite, every attribute, and the whole plugin API."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from plaunch.plugin.guard import DEFAULT_LIMITS
from plaunch_doctor import checks
from plaunch_events import event_queue
from plaunch_testing import conformance
from plaunch_testing.conformance import hooks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/testing-plugins.md").read_text()
SUITES = {name: value for name, value in vars(conformance).items() if name.endswith("Conformance")}
OTHER_PAGE = ("RendezvousConformance", "RendezvousStoreConformance")  # writing-a-backend.md


def test_every_suite_has_a_row():
    assert set(re.findall(r"^\| `(\w+Conformance)` \|", PAGE, re.M)) == set(SUITES)


@pytest.mark.parametrize("name", [name for name in SUITES if name not in OTHER_PAGE])
def test_every_attribute_of_a_suite_is_in_the_table(name):
    table = PAGE.partition("\n### Attributes of the suites\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (.+?) \|", table, re.M))))
    attributes = {
        key
        for base in SUITES[name].__mro__
        for key, value in vars(base).items()
        if base.__module__.startswith("plaunch_testing.")
        and not key.startswith(("_", "test_"))
        and not callable(value)
        and not hasattr(value, "func")  # looked up once in a test
    }
    assert attributes <= listed


def test_the_modules_of_the_plugin_api_are_those_of_the_snapshot():
    spec = importlib.util.spec_from_file_location(
        "plugin_api_of_docs", ROOT / "tests/api/plugin_api.py"
    )
    api = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(api)
    table = PAGE.partition("The plugin API consists of")[2].partition("\n\nEntry-point")[0]
    rows = re.findall(r"^\| (`plaunch.+?) \| (.+) \|$", table, re.M)
    listed = {module: row for modules, row in rows for module in re.findall(r"`(.+?)`", modules)}
    assert set(listed) == set(api.MODULES)
    for module, names in api.MODULES.items():
        if names:
            assert set(names) == set(re.findall(r"`(\w+)`", listed[module])), module


def test_hooks_have_the_same_time_limits_as_in_a_launch():
    assert hooks.NOTIFY_TIMEOUT == DEFAULT_LIMITS.notification
    assert hooks.DOCTOR_TIMEOUT == checks.CHECKS_TIMEOUT
    assert hooks.START_TIMEOUT == DEFAULT_LIMITS.start == DEFAULT_LIMITS.hook
    assert hooks.STOP_TIMEOUT == event_queue.LAST_WAIT == DEFAULT_LIMITS.stop
