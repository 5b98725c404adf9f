"""Checking a plugin that is installed: the suites of its kinds, run with pytest, in plain words."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from plaunch.errors import PluginError, UsageError
from plaunch.plugin.blame import blamed
from plaunch.plugin.registry import ALL_KINDS, RENDEZVOUS
from plaunch.rendezvous.api import RendezvousParameters
from plaunch.rendezvous.job import JobRendezvous

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

HANG = "takes more than"  # how such a failure is told
MAX_HANGS = 3  # checks that end because there is no answer in time, before the others are given up

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

_MODULE = os.path.join(os.path.dirname(__file__), "suites.py")
_CLASSES = {kind.name: f"Test_{kind.name}" for kind in ALL_KINDS}
_JOB_CLASS = "Test_job_rendezvous"

# What the caller has set for tests of its own must not change what is checked here.
_ARGUMENTS = (
    "--noconftest",
    f"-c{os.path.splitext(_MODULE)[0]}.ini",
    "--import-mode=importlib",
    "-pno:cacheprovider",
    "-pno:terminal",
)
_VARIABLES = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")


@dataclass(frozen=True)
class Subject:
    """A plugin to check, under one of the names that it has.

    Args:
        kind: the name of its kind.
        name: its own name.
        thing: what the name gives.
        module: what a launch imports for it; empty to take where it is defined.
        is_for_torch: whether it was written for torchrun.
        endpoint: for a rendezvous backend, as `--rdzv-endpoint`.
        config: for a rendezvous backend, as `--rdzv-conf`.
        nodes: for a plain rendezvous handler, how many nodes the job has.
        options: options for the plugin alone, as its context has them.
    """

    kind: str
    name: str
    thing: Any
    module: str = ""
    is_for_torch: bool = False
    endpoint: str = ""
    config: Mapping[str, object] = field(default_factory=dict)
    nodes: int = 1
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckResult:
    """What became of one check.

    Args:
        kind: the name of the kind whose suite it is of.
        check: what should be so, in words.
        outcome: `passed`, `failed` or `skipped`.
        about: why it should be so.
        found: what is so instead, or why the check was left out; empty if it passed.
        traceback: how it came to that, if it failed.
    """

    kind: str
    check: str
    outcome: str
    about: str = ""
    found: str = ""
    traceback: str = ""


def check_plugin(
    subjects: Sequence[Subject],
    show: Callable[[CheckResult], None] = lambda result: None,
    gave_up: Callable[[], None] = lambda: None,
) -> list[CheckResult]:
    """Run the suites for all `subjects`, of which there is at most one of each kind.

    Args:
        subjects: what to check.
        show: is called with each result as soon as it is there.
        gave_up: is called if there is no answer in time so often that checks are left out.

    Raises:
        UsageError: a rendezvous backend does not take the endpoint or the options.
        PluginError: the plugin cannot be created at all, or the suites cannot be run.
    """
    classes = [
        _JOB_CLASS if subject.kind == RENDEZVOUS.name and _knows_job(subject) else class_of(subject)
        for subject in subjects
    ]
    listener = _Listener(subjects, show)
    arguments = [*_ARGUMENTS, *(f"{_MODULE}::{name}" for name in classes)]
    with (
        # Not where other runs of pytest clean up.
        tempfile.TemporaryDirectory(prefix="plaunch-check-", ignore_cleanup_errors=True) as folder,
        mock.patch.dict(os.environ, {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}),
    ):
        for name in _VARIABLES:
            os.environ.pop(name, None)
        code = pytest.main([*arguments, f"--basetemp={folder}/checks"], plugins=[listener])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        why = listener.trouble or f"pytest ends with {code!r}"
        raise PluginError(f"the checks cannot be run: {why}")
    if listener.is_given_up:
        gave_up()
    return listener.results


def class_of(subject: Subject) -> str:
    """The class of tests for a subject's kind."""
    return _CLASSES[subject.kind]


def _knows_job(subject: Subject) -> bool:
    """Whether the handler is one that knows the whole job, for which there is a larger suite."""
    params = RendezvousParameters(
        subject.name,
        subject.endpoint,
        "conformance-look",
        subject.nodes,
        subject.nodes,
        "127.0.0.1",
        **dict[str, Any](subject.config),
    )
    try:
        with blamed(RENDEZVOUS, subject.name):
            handler = subject.thing(params)
    except UsageError as error:
        raise UsageError(
            f"{error}; give --check-plugin the --rdzv-endpoint, --rdzv-conf and --nnodes that the "
            "backend needs"
        ) from error
    try:
        return isinstance(handler, JobRendezvous)
    finally:
        handler.shutdown()


class _Listener:
    """A plugin of pytest's, which hands over the subjects and notes the results."""

    def __init__(self, subjects: Sequence[Subject], show: Callable[[CheckResult], None]) -> None:
        self._subjects = {subject.kind: subject for subject in subjects}
        self._show = show
        self._items: dict[str, tuple[str, str, str]] = {}
        self.results: list[CheckResult] = []
        self.trouble = ""
        self._session: pytest.Session | None = None
        self._hangs = 0

    @pytest.fixture(scope="session")
    def subjects(self) -> dict[str, Subject]:
        """What is checked, by kind."""
        return self._subjects

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Note whom to ask for an early end."""
        self._session = session

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Note what a check is called, and what it is about."""
        if not isinstance(item, pytest.Function):
            return
        words = item.originalname.removeprefix("test_").replace("_", " ")
        if hasattr(item, "callspec"):
            words += f": {item.callspec.id}"
        about = " ".join((item.function.__doc__ or "").split())
        kind = item.getparent(pytest.Class)
        self._items[item.nodeid] = ("" if kind is None else kind.obj.kind, words, about)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note why the suites cannot be loaded."""
        if report.failed:
            self.trouble = report.longreprtext

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a result; what goes wrong before or after a check counts as well."""
        kind, words, about = self._items[report.nodeid]
        if report.when == "teardown":
            words += ", and ends"
        if report.failed:
            result = CheckResult(kind, words, FAILED, about, _found(report), report.longreprtext)
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            result = CheckResult(kind, words, SKIPPED, about, reason.removeprefix("Skipped: "))
        elif report.when == "call":
            result = CheckResult(kind, words, PASSED, about)
        else:
            return
        self.results.append(result)
        self._show(result)
        self._hangs += result.outcome == FAILED and HANG in result.found
        if self._hangs == MAX_HANGS and self._session is not None:
            self._session.shouldfail = "it does not answer in time"

    @property
    def is_given_up(self) -> bool:
        """Whether there was no answer too often."""
        return self._hangs >= MAX_HANGS


def _found(report: pytest.TestReport) -> str:
    """What is wrong, in as few words as the failure allows."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return report.longreprtext
    text: str = crash.message
    is_assertion = text.startswith("AssertionError: ")
    text = text.removeprefix("AssertionError: ").removeprefix("Failed: ")
    if is_assertion:
        # pytest adds what it compared, which only says it again.
        text = text.partition("\nassert ")[0]
    if os.path.dirname(os.path.dirname(_MODULE)) not in crash.path:
        text += f" ({crash.path}:{crash.lineno})"
    return text
