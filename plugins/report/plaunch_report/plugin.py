"""The plugin behind `--failure-bundle` and `--failure-bundles`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.agent import Extension
from plaunch.errors import UsageError
from plaunch.plugin import hookimpl
from plaunch.process import LogsSpecs, why_not_writable

if TYPE_CHECKING:
    from plaunch.agent import Control, RunResult
    from plaunch.plugin import PluginContext

_MAX_PATH = 3000  # bytes; the system takes 4096


@hookimpl
def plaunch_extensions(context: PluginContext) -> list[Extension]:
    """Create the extension, unless bundles are switched off.

    Raises:
        UsageError: the given folder is not writable.
    """
    # The plugin may be loaded by name, without its options.
    which = context.options.get("failure_bundles", "none")
    if which == "none":
        return []
    from plaunch_report.failure_bundle.extension import FailureBundles  # if selected

    return [FailureBundles(context, read_folder(context.options["failure_bundle"]), which)]


def keeps_files(logs_specs: object) -> bool:
    """Whether files of this logs spec (or None) remain after the launch."""
    if not isinstance(logs_specs, LogsSpecs):
        return False
    return logs_specs.root_log_dir not in (None, "", logs_specs.temporary_dir)


class AfterFailure(Extension):
    """Writes a bundle after a failed launch, from the events that the launch has kept.

    It is created if none of the options is given; a launch that succeeds imports nothing for it.

    Args:
        context: the launch.
    """

    takes_events = False

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self._control: Control

    def start(self, control: Control) -> None:
        """Keep the control."""
        self._control = control

    def stop(self, result: RunResult | None) -> None:
        """Start a bundle, if the launch failed, had started workers, and leaves files."""
        is_wanted = result is None or result.is_failed()
        if not is_wanted or not keeps_files(self._context.settings.get("logs_specs")):
            return
        from plaunch_report.failure_bundle.extension import start_work  # failures

        start_work(lambda: self._write(result))

    def _write(self, result: RunResult | None) -> None:
        from plaunch_report.failure_bundle.bundle import write_bundle  # failures
        from plaunch_report.failure_bundle.extension import write_after

        events = self._control.take_events()
        if any(event.name == "plaunch.workers.started" for event in events):
            write_after(events, result, self._context, write_bundle)


def read_folder(given: object) -> str:
    """Return the absolute folder of bundles; empty for the folder of the run. Creates nothing.

    Raises:
        UsageError: the value is not a path, or the folder is not writable.
    """
    if given is None or given == "":
        return ""
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str):
        raise UsageError(f"failure_bundle is {given!r}; give the path of a folder")
    path = str(os.fspath(given))
    problem = _problem(path)
    if problem:
        raise UsageError(f"--failure-bundle is {path!r:.200}, {problem}; give another folder")
    return os.path.abspath(path)


def _problem(path: str) -> str:
    try:
        if "\0" in path or len(os.fsencode(path)) > _MAX_PATH:
            return "which is not a valid path"
    except UnicodeEncodeError:
        return "which is not a valid path"
    if path.endswith(".zip"):
        return "and the files in it are called failure-<attempt>.zip, so it should be a folder"
    existing = whole = os.path.abspath(path)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    what = "which" if existing == whole else f"and {existing!r}"
    if not os.path.isdir(existing):
        return f"{what} is not a folder"
    reason = why_not_writable(existing)
    return f"{what} {reason}" if reason else ""
