"""The extension that writes failure bundles of a launch."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from plaunch.agent import Extension
from plaunch.errors import PlaunchError
from plaunch.plugin import one_line
from plaunch.threads import FinalWork

from plaunch_report.failure_bundle.history import FailureHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from plaunch.agent import RunResult
    from plaunch.events import Event
    from plaunch.plugin import PluginContext

    from plaunch_report.failure_bundle.history import FailedAttempt

    Write = Callable[[FailedAttempt, PluginContext, str], None]

logger = logging.getLogger("plaunch")

LIMIT = 10.0  # seconds after a failure in which its bundle is made
_FAILED = ("failed", "error")  # the outcomes of launches with a bundle
_FINISHED = "plaunch.launcher.finished"
_MAX_AT_A_TIME = 4  # bundles, if workers fail repeatedly at once
_REST_WAIT = 0.8  # seconds for bundles to be finished before workers are forked


class FailureBundles(Extension):
    """Keeps the events of a launch, and writes a bundle when the job fails.

    A bundle is written on its own thread, so that neither the report nor a restart waits for it.
    The process ends after the bundle is written, or has failed, `LIMIT` seconds later at most.

    Args:
        context: the launch.
        folder: the folder of bundles; empty for the folder of the run.
        which: `last`, or `all` to include failures followed by a restart.
        write: writes a bundle.
    """

    def __init__(
        self,
        context: PluginContext,
        folder: str,
        which: str,
        write: Write | None = None,
    ) -> None:
        self._context = context
        self._folder = folder
        self._which = which
        self._write = write or _write_bundle
        self._history = FailureHistory()
        self._end: Event | None = None
        self._threads: list[FinalWork] = []

    def handle(self, event: Event) -> None:
        """Keep the next event; after a restart, write a bundle if `which` is `all`."""
        self._history.note(event)
        if event.name == _FINISHED:
            self._end = event
        elif (
            event.name == "plaunch.restart"
            and self._which == "all"
            and event.metadata["cause"] == "failure"
        ):
            self._start_bundle(self._history.describe_failure(event))

    def stop(self, result: RunResult | None) -> None:
        """Start the last bundle, if the launch failed."""
        if self._end is not None and self._end.metadata["outcome"] in _FAILED:
            self._start_bundle(self._history.describe_failure(self._end, result))

    def rest(self) -> None:
        """Wait a bounded time for unfinished bundles, so that the process can fork."""
        until = time.monotonic() + _REST_WAIT
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))

    def _start_bundle(self, failed: FailedAttempt) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if failed.is_restart and len(self._threads) >= _MAX_AT_A_TIME:
            logger.warning(
                "no failure bundle of attempt %d: %d others are being written",
                failed.attempt,
                len(self._threads),
            )
            return
        thread = start_work(lambda: self._write(failed, self._context, self._folder))
        if thread is not None:
            self._threads.append(thread)


def start_work(function: Callable[[], object]) -> FinalWork | None:
    """Start the thread that makes a bundle; if there is none, log why and return None."""

    def work() -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - this thread has no caller
            said = str(error) if isinstance(error, PlaunchError) else one_line(error)
            logger.warning("no failure bundle is written: %s", said)

    thread = FinalWork("the failure bundle", work, LIMIT)
    try:
        thread.start()
    except RuntimeError as error:  # no more threads, or the interpreter is ending
        logger.warning("no failure bundle is written: %s", error)
        return None
    return thread


def write_after(
    events: Iterable[Event], result: RunResult | None, context: PluginContext, write: Write
) -> None:
    """Write the last bundle of a launch that has kept its events, to the folder of the run."""
    history = FailureHistory()
    end = None
    for event in events:
        history.note(event)
        if event.name == _FINISHED:
            end = event
    if end is not None and end.metadata["outcome"] in _FAILED:
        write(history.describe_failure(end, result), context, "")


def _write_bundle(failed: FailedAttempt, context: PluginContext, folder: str) -> None:
    from plaunch_report.failure_bundle.bundle import write_bundle  # on the thread; failures only

    write_bundle(failed, context, folder)
