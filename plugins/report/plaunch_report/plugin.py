"""The plugin behind `--failure-bundle` and `--failure-bundles`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.plugin import hookimpl

if TYPE_CHECKING:
    from plaunch.agent import Control, Extension, RunResult
    from plaunch.events import Event
    from plaunch.plugin import PluginContext

_MAX_PATH = 3000  # bytes; the system takes 4096


@hookimpl
def plaunch_extensions(context: PluginContext) -> list[Extension]:
    """Look after the failures of the launch.

    Raises:
        UsageError: no file could be written to the folder that is named.
    """
    # It may be loaded by its name, with no option given.
    which = context.options.get("failure_bundles", "none")
    if which == "none":
        return []
    from plaunch_report.failure_bundle.extension import FailureBundles  # if asked for

    return [FailureBundles(context, read_folder(context.options["failure_bundle"]), which)]


def keeps_files(logs_specs: object) -> bool:
    """Whether a launch that has ended leaves a folder with files of this logs spec, or None."""
    root = getattr(logs_specs, "root_log_dir", None)
    return bool(root) and root != getattr(logs_specs, "temporary_dir", None)


class AfterFailure:
    """Looks at a launch only once it has failed, from what it has kept of its events.

    Made then if none of the options is given: a launch that succeeds imports nothing of it.

    Args:
        context: the launch.
    """

    takes_events = False

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self._control: Control

    def start(self, control: Control) -> None:
        """Know whom to ask."""
        self._control = control

    def handle(self, event: Event) -> None:
        """Take no event."""

    def stop(self, result: RunResult | None) -> None:
        """Begin a bundle, if the launch has failed while there were workers, and left files."""
        is_wanted = result is None or result.is_failed()
        if not is_wanted or not keeps_files(self._context.settings.get("logs_specs")):
            return
        events = self._control.take_events()
        if all(event.name != "plaunch.workers.started" for event in events):
            return
        from plaunch_report.failure_bundle.extension import FailureBundles  # failures

        bundles = FailureBundles(self._context, "", "last")
        for event in events:
            bundles.handle(event)
        bundles.stop(result)


def read_folder(given: object) -> str:
    """The folder for bundles, absolute; empty if it is that of the run.

    Raises:
        UsageError: it cannot be one, or is not writable. Nothing is created here.
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
            return "which is no path"
    except UnicodeEncodeError:
        return "which is no path"
    if path.endswith(".zip"):
        return "and the files in it are called failure-<attempt>.zip, so it should be a folder"
    existing = whole = os.path.abspath(path)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    what = "which" if existing == whole else f"and {existing!r}"
    if not os.path.isdir(existing):
        return f"{what} is not a folder"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{what} is not writable for this user"
    return ""
