"""`--check-plugin`: run the conformance suites for a plugin, and print the results."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from functools import partial
from typing import TYPE_CHECKING, TextIO

from plaunch.cli import parse_min_max_nnodes, parse_rdzv_conf
from plaunch.errors import PluginLoadError, UsageError
from plaunch_events import parse_event_conf

from plaunch_testing.check.child import call_in_child
from plaunch_testing.check.subjects import CheckSettings, find_subjects, silence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch.cli import Invocation

    from plaunch_testing.check.running import CheckResult

_MARKS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}
_INDENT = 4


def run_check(invocation: Invocation) -> int:
    """Check a plugin under all kinds that provide its name.

    Prints a line for each check, then the failures. Returns 0 if all checks pass, else 1. The
    plugin is loaded and checked in a child process, so that it cannot end this process with exit
    code 0.

    Raises:
        UsageError: no plugin provides the name, several do, or the plugin needs other options.
        PluginError: the plugin cannot be loaded, or ended the child process.
        PluginLoadError: pytest is missing.
    """
    if importlib.util.find_spec("pytest") is None:
        raise PluginLoadError(
            "--check-plugin needs pytest, which is not installed; "
            "python -m pip install 'plaunch[testing]'"
        )
    name = invocation.options["check_plugin"]
    with _copy(invocation.stream) as out:
        return call_in_child(f"--check-plugin={name}", partial(_check, invocation, out))


def _check(invocation: Invocation, out: TextIO, note: Callable[[str], None]) -> int:
    """Load and check the plugin; `note` is called with each next step.

    The plugin's stdout goes to stderr.
    """
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    options = invocation.options
    given = CheckSettings(
        options["rdzv_endpoint"],
        parse_rdzv_conf(options["rdzv_conf"]),
        parse_min_max_nnodes(options["nnodes"])[1],
        options["local_addr"],
        parse_event_conf(options.get("event_conf", ())),
        options,
    )
    subjects = find_subjects(options["check_plugin"], invocation.create_manager(), given)

    from plaunch_testing.check.running import check_plugin  # it imports pytest

    with silence():
        shown_labels = set[str]()

        def show(result: CheckResult) -> None:
            if result.label not in shown_labels:
                shown_labels.add(result.label)
                out.write(f"{result.label}\n")
            why = f" ({result.found})" if result.outcome == "skipped" and result.found else ""
            out.write(f"  {_MARKS[result.outcome]:8}  {result.check}{why}\n")
            out.flush()

        report = check_plugin(subjects, show, lambda words: note(f"during the check {words!r}"))
        failed = [result for result in report.results if result.outcome == "failed"]
        for alike in _alike(failed):
            out.write(_details(alike))
        out.write(f"\n{_summary(report.results)}\n")
        if report.is_given_up:
            out.write("the other checks were skipped, because it does not answer in time\n")
        out.flush()
    return 1 if failed else 0


def _alike(failed: Sequence[CheckResult]) -> list[list[CheckResult]]:
    """Group failures of one plugin with the same result, which mostly have one cause."""
    groups: dict[tuple[str, str], list[CheckResult]] = {}
    for result in failed:
        groups.setdefault((result.label, result.found), []).append(result)
    return list(groups.values())


def _details(alike: Sequence[CheckResult]) -> str:
    result = alike[0]
    if len(alike) > 1:
        first = f"{result.label}: {len(alike)} checks fail alike"
        lines = [one.check for one in alike]
    else:
        first = f"{result.label}: {result.check}"
        lines = [f"expected: {result.about}"] if result.about else []
    lines.append(f"found: {result.found}")
    if os.environ.get("PLAUNCH_DEBUG") == "1":
        lines.append(result.traceback)
    indented = (" " * _INDENT + line for line in "\n".join(lines).splitlines())
    return "\n".join(["", first, *indented]) + "\n"


def _summary(results: Sequence[CheckResult]) -> str:
    counts = {name: sum(one.outcome == name for one in results) for name in _MARKS}
    return (
        f"{len(results)} checks: {counts['passed']} passed, {counts['failed']} failed, "
        f"{counts['skipped']} skipped"
    )


def _copy(stdout: TextIO) -> TextIO:
    """Duplicate stdout, because pytest captures the original during the checks."""
    try:
        stdout.flush()
        fd = os.dup(stdout.fileno())
    except (AttributeError, OSError, ValueError):
        raise UsageError("--check-plugin prints to stdout, which is not open") from None
    return open(fd, "w", encoding="utf-8", errors="backslashreplace")
