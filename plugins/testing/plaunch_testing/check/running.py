"""Runs the conformance suites with pytest, and records the result of each check."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from plaunch.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch_testing.check.subjects import Subject

HANG = "takes more than"  # in the message of a check that timed out
MAX_HANGS = 3  # timed-out checks before the rest is skipped

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

_FOLDER = os.path.dirname(__file__)
_MODULE = os.path.join(_FOLDER, "suites.py")

# Ignore the caller's own pytest settings.
_ARGUMENTS = (
    "--noconftest",
    f"-c{os.path.join(_FOLDER, 'suites.ini')}",
    "--import-mode=importlib",
    "-pno:cacheprovider",
    "-pno:terminal",
)
_VARIABLES = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Args:
        label: the plugin's kind and name, for messages.
        check: the name of the check, in words.
        outcome: `passed`, `failed` or `skipped`.
        about: what is expected, and why.
        found: the failure, or why the check was skipped; empty if it passed.
        traceback: the traceback if it failed.
    """

    label: str
    check: str
    outcome: str
    about: str = ""
    found: str = ""
    traceback: str = ""


@dataclass
class Report:
    """The results of all checks; `is_given_up` if the rest was skipped after time-outs."""

    results: list[CheckResult] = field(default_factory=list)
    is_given_up: bool = False


def check_plugin(
    subjects: Sequence[Subject],
    show: Callable[[CheckResult], None] = lambda result: None,
    begin: Callable[[str], None] = lambda check: None,
) -> Report:
    """Run the suites for all `subjects`; at most one subject for each suite.

    Args:
        subjects: the plugins to check.
        show: called with each result.
        begin: called with the name of each check before it begins.

    Raises:
        PluginError: the suites cannot be run.
    """
    classes = [f"Test_{subject.topic}" for subject in subjects]
    listener = _Listener(subjects, show, begin)
    arguments = [*_ARGUMENTS, *(f"{_MODULE}::{name}" for name in classes)]
    with (
        # Other pytest runs clean up in pytest's own base folder.
        tempfile.TemporaryDirectory(prefix="plaunch-check-", ignore_cleanup_errors=True) as folder,
        mock.patch.dict(os.environ, {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}),
    ):
        for name in _VARIABLES:
            os.environ.pop(name, None)
        code = pytest.main([*arguments, f"--basetemp={folder}/checks"], plugins=[listener])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        why = listener.trouble or f"pytest ends with {code!r}"
        raise PluginError(f"the checks cannot be run: {why}")
    return listener.report


class _Listener:
    """A pytest plugin that provides the subjects and records the results."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        show: Callable[[CheckResult], None],
        begin: Callable[[str], None],
    ) -> None:
        self._subjects = {subject.topic: subject for subject in subjects}
        self._show = show
        self._begin = begin
        self._items: dict[str, tuple[str, str, str]] = {}
        self._session: pytest.Session | None = None
        self._hangs = 0
        self.report = Report()
        self.trouble = ""

    @pytest.fixture(scope="session")
    def subjects(self) -> dict[str, Subject]:
        """The subjects of a check, by their topic."""
        return self._subjects

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session, to end it early."""
        self._session = session

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Record the name and the description of a check."""
        suite = item.getparent(pytest.Class)
        if not isinstance(item, pytest.Function) or suite is None:
            return
        words = item.originalname.removeprefix("test_").replace("_", " ")
        if hasattr(item, "callspec"):
            words += f": {item.callspec.id}"
        about = " ".join((item.function.__doc__ or "").split())
        self._items[item.nodeid] = (self._subjects[suite.obj.kind].label, words, about)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record why the suites cannot be loaded."""
        if report.failed:
            self.trouble = report.longreprtext

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Report the check that begins."""
        self._begin(self._items[nodeid][1])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a result. Errors in setup and teardown count as well."""
        label, words, about = self._items[report.nodeid]
        if report.when == "teardown":
            words += ", and ends"
        if report.failed:
            result = CheckResult(label, words, FAILED, about, _found(report), report.longreprtext)
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            result = CheckResult(label, words, SKIPPED, about, reason.removeprefix("Skipped: "))
        elif report.when == "call":
            result = CheckResult(label, words, PASSED, about)
        else:
            return
        self.report.results.append(result)
        self._show(result)
        self._hangs += result.outcome == FAILED and HANG in result.found
        if self._hangs == MAX_HANGS and self._session is not None:
            self.report.is_given_up = True
            self._session.shouldfail = "it does not answer in time"


def _found(report: pytest.TestReport) -> str:
    """Describe the failure as briefly as possible."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return report.longreprtext
    text: str = crash.message
    is_assertion = text.startswith("AssertionError: ")
    text = text.removeprefix("AssertionError: ").removeprefix("Failed: ")
    if is_assertion:
        # Drop the comparison that pytest appends.
        text = text.partition("\nassert ")[0]
    if os.path.dirname(_FOLDER) not in crash.path:
        text += f" ({crash.path}:{crash.lineno})"
    return text
