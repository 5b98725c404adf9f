"""The extension, and its doctor check."""

from __future__ import annotations

import contextlib
import os
import threading

from plaunch import hookimpl
from plaunch.agent import Control, Extension, RunResult
from plaunch.doctor import DoctorContext, Finding, Status
from plaunch.plugin import PluginContext

PERIOD = 0.2  # seconds between two checks for the file


class ReloadOnFile(Extension):
    """Requests a restart when a file appears.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, control: Control) -> None:
        """Start to watch for the file."""
        is_there = os.path.exists(self._path)
        if is_there:
            control.say(f"{self._path} already exists, and is ignored until it is removed")
        watch = threading.Thread(target=self._watch, args=(control, is_there), daemon=True)
        self._thread = watch
        watch.start()

    def stop(self, result: RunResult | None) -> None:
        """Stop watching."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, control: Control, was_there: bool) -> None:
        while not self._is_over.wait(PERIOD):
            is_there = os.path.exists(self._path)
            if is_there and not was_there:
                with contextlib.suppress(FileNotFoundError):  # already removed
                    os.unlink(self._path)
                is_there = False
                control.request("restart", f"{self._path} has appeared")
            was_there = is_there


@hookimpl
def plaunch_extensions(context: PluginContext) -> list[ReloadOnFile]:
    """Watch for the file, if the option is given."""
    path = context.options.get("reload_file")
    return [ReloadOnFile(path)] if path else []


@hookimpl
def plaunch_doctor_checks(context: DoctorContext) -> list[Finding]:
    """Check that the file could be removed."""
    path = context.options.get("reload_file")
    if not path:
        return []
    folder = os.path.dirname(os.path.abspath(str(path)))
    if os.access(context.path(folder), os.W_OK):
        return [Finding(Status.OK, "reload file", f"{path} can be created and removed")]
    found, advice = f"nothing can be removed from {folder}", "name a file where you may write"
    return [Finding(Status.PROBLEM, "reload file", found, advice)]
