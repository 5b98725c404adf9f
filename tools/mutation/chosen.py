"""A plugin for pytest: runs the tests that MUTATION_CHOSEN names, in that order.

The file also says which tests of these modules are known: new ones run first. The name of the first
test that fails is written to the file `failed` beside it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

LEAST_TIMEOUT = 30.0  # seconds, on a busy machine
TIMEOUT_FACTOR = 10.0  # how many times as long as usual a test may take


def pytest_collection_modifyitems(config, items):
    """Keep the chosen tests and the new ones."""
    plan = json.loads(Path(os.environ["MUTATION_CHOSEN"]).read_text())
    order = {name: number for number, name in enumerate(plan["seconds"])}
    known = None if plan["known"] is None else set(plan["known"])
    kept = [
        item
        for item in items
        if item.nodeid in order or (known is not None and item.nodeid not in known)
    ]
    for item in kept:
        seconds = plan["seconds"].get(item.nodeid, 0.0)
        item.add_marker(pytest.mark.timeout(max(LEAST_TIMEOUT, TIMEOUT_FACTOR * seconds)))
    kept.sort(key=lambda item: order.get(item.nodeid, -1))
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def pytest_runtest_logreport(report):
    """Write the name of the first failed test."""
    if report.failed:
        _write(report.nodeid)


def pytest_collectreport(report):
    """Write the name of the first module that cannot be imported."""
    if report.failed:
        _write(report.nodeid)


def _write(name: str) -> None:
    path = Path(os.environ["MUTATION_CHOSEN"]).with_name("failed")
    if not path.exists():
        path.write_text(name)
