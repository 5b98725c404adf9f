"""Follows one launch, and has a bundle written when it has failed."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from plaunch_report.failure_bundle.history import FailureHistory

if TYPE_CHECKING:
    from plaunch.agent import Control, RunResult
    from plaunch.events import Event
    from plaunch.plugin import PluginContext

    from plaunch_report.failure_bundle.history import FailedAttempt

logger = logging.getLogger("plaunch")

_FAILED = ("failed", "error")  # the outcomes of a launch that is worth a bundle
_MOST_AT_A_TIME = 4  # bundles, of workers that fail again and again at once
_REST_WAIT = 0.8  # seconds for bundles to be done before workers are forked


class FailureBundles:
    """Writes a bundle when the job has failed; before that, it only keeps events.

    A bundle is written on a thread of its own, so that neither the report nor a restart waits for
    it. The thread is no daemon: the process does not end before the bundle is there, for which
    there is a bound of less than two seconds.

    Args:
        context: the launch.
        folder: where bundles go; empty for the folder of the run.
        which: `last`, or `all` for those of restarts, too.
    """

    def __init__(self, context: PluginContext, folder: str, which: str) -> None:
        self._context = context
        self._folder = folder
        self._which = which
        self._history = FailureHistory(context.run_id)
        self._end: Event | None = None
        self._threads: list[threading.Thread] = []

    def start(self, control: Control) -> None:
        """Do nothing yet."""

    def handle(self, event: Event) -> None:
        """Take the next event."""
        self._history.note(event)
        if event.name == "plaunch.launcher.finished":
            self._end = event
        elif (
            event.name == "plaunch.restart"
            and self._which == "all"
            and event.metadata["cause"] == "failure"
        ):
            self._write(self._history.describe_failure(event))

    def stop(self, result: RunResult | None) -> None:
        """Begin the last bundle, if the launch has failed."""
        if self._end is not None and self._end.metadata["outcome"] in _FAILED:
            self._write(self._history.describe_failure(self._end, result))

    def rest(self) -> None:
        """Have no thread, for the process to fork, as far as bundles are soon done."""
        until = time.monotonic() + _REST_WAIT
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))

    def _write(self, failed: FailedAttempt) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if failed.is_restart and len(self._threads) >= _MOST_AT_A_TIME:
            logger.warning(
                "no failure bundle of attempt %d: %d others are being written",
                failed.attempt,
                len(self._threads),
            )
            return
        from plaunch_report.failure_bundle.bundle import write_bundle  # failures only

        thread = threading.Thread(
            target=write_bundle,
            args=(failed, self._context, self._folder),
            name=f"plaunch-failure-bundle-{failed.attempt}",
            daemon=False,
        )
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            logger.warning("no failure bundle is written: %s", error)
            return
        self._threads.append(thread)
