"""What `--check-plugin` takes a name for, where several plugins have it."""

from __future__ import annotations

import pytest
from plaunch.errors import UnknownNameError
from plaunch.plugin.kinds import DEVICE_COUNTS, EVENT_HANDLERS, LIFECYCLE, SIGNAL_POLICIES
from plaunch_testing.check.subjects import find_kinds

HOOKS = """
import plaunch
@plaunch.hookimpl
def plaunch_workers_started(): pass
def count(): return 1
"""


@pytest.fixture
def manager(site):
    site.install(
        "acme",
        {
            "plaunch.plugins": {"both": "acme_hooks"},
            "plaunch.device_counts": {"both": "acme_hooks:count"},
            "plaunch.event_handlers": {"console": "acme_hooks:count"},
        },
        acme_hooks=HOOKS,
    )
    site.install(
        "other",
        {
            "plaunch.device_counts": {"console": "other_hooks:count"},
            "plaunch.signal_policies": {"broken": "no_such_module"},
        },
        other_hooks=HOOKS,
    )
    return site.manager()


@pytest.mark.parametrize(
    ("text", "kinds", "name"),
    [
        ("both", [LIFECYCLE, DEVICE_COUNTS], "both"),
        ("plugin:both", [LIFECYCLE], "plugin:both"),
        ("device_counts:both", [DEVICE_COUNTS], "both"),
        ("acme:both", [LIFECYCLE, DEVICE_COUNTS], "acme:both"),
        ("acme:console", [EVENT_HANDLERS], "acme:console"),
        ("other:console", [DEVICE_COUNTS], "other:console"),
        ("other:broken", [SIGNAL_POLICIES], "other:broken"),
    ],
)
def test_the_kinds_of_a_name(manager, text, kinds, name) -> None:
    assert find_kinds(text, manager) == (kinds, name)


@pytest.mark.parametrize("text", ["plugin:console", "other:both", "nowhere:both"])
def test_a_name_that_is_none(manager, text) -> None:
    with pytest.raises(UnknownNameError, match=f"--check-plugin={text} names no plugin"):
        find_kinds(text, manager)
