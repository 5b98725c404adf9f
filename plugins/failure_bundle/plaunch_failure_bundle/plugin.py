"""The plugin behind `--failure-bundle` and `--failure-bundles`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.plugin import hookimpl

from plaunch_failure_bundle.extension import FailureBundles

if TYPE_CHECKING:
    from plaunch.plugin import PluginContext

_MAX_PATH = 3000  # bytes; the system takes 4096


@hookimpl
def plaunch_extensions(context: PluginContext) -> list[FailureBundles]:
    """Look after the failures of the launch.

    Raises:
        UsageError: no file could be written to the folder that is named.
    """
    # It may be loaded by its name, with no option given.
    which = context.options.get("failure_bundles", "none")
    if which == "none":
        return []
    return [FailureBundles(context, read_folder(context.options["failure_bundle"]), which)]


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
