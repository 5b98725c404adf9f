"""A plugin for pytest: records which test executes which lines of the core, and for how long.

Processes that a test starts are recorded, too: coverage starts in each, and the test's key is its
context there.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import coverage
import pytest

KEY_VARIABLE = "MUTATION_TEST_KEY"  # in the environment: the context in processes of a test
CONFIG_VARIABLE = "MUTATION_COVERAGE_CONFIG"
RESULTS_VARIABLE = "MUTATION_TEST_RESULTS"


class TestRecorder:
    """Switches the context of coverage with each test."""

    def __init__(self) -> None:
        self._coverage = coverage.Coverage(config_file=os.environ[CONFIG_VARIABLE])
        self._coverage.start()
        os.environ["COVERAGE_PROCESS_START"] = os.environ[CONFIG_VARIABLE]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        """Record under the key of this test, also in forked processes."""
        key = key_of(item.nodeid)
        os.environ[KEY_VARIABLE] = key
        self._coverage.set_option("run:context", key)
        self._coverage.switch_context(key)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")

    def pytest_sessionfinish(self):
        """Write what was recorded in this process."""
        self._coverage.stop()
        self._coverage.save()
        os.environ.pop("COVERAGE_PROCESS_START")


class ResultRecorder:
    """Writes the duration and the outcome of each test."""

    def __init__(self) -> None:
        self._results: dict[str, dict] = {}

    def pytest_runtest_logreport(self, report):
        """Add a phase of a test to its result."""
        result = self._results.setdefault(
            report.nodeid, {"seconds": 0.0, "outcome": "passed", "key": key_of(report.nodeid)}
        )
        result["seconds"] = round(result["seconds"] + report.duration, 3)
        if report.outcome != "passed":
            result["outcome"] = report.outcome

    def pytest_sessionfinish(self):
        """Write all results."""
        Path(os.environ[RESULTS_VARIABLE]).write_text(json.dumps(self._results))


def key_of(nodeid: str) -> str:
    """Return a short name of a test, which any file format takes."""
    return hashlib.sha256(nodeid.encode()).hexdigest()[:12]


def pytest_configure(config):
    """Record in the processes that run tests, and the results in the one that collects them."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if not is_worker:
        config.pluginmanager.register(ResultRecorder())
    if is_worker or not config.option.numprocesses:
        config.pluginmanager.register(TestRecorder())
