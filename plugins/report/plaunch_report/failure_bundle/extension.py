"""The extension that writes failure bundles of a launch."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from plaunch.agent import Extension

from plaunch_report.failure_bundle.history import FailureHistory

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent import RunResult
    from plaunch.events import Event
    from plaunch.plugin import PluginContext

    from plaunch_report.failure_bundle.history import FailedAttempt

logger = logging.getLogger("plaunch")

_FAILED = ("failed", "error")  # the outcomes of launches with a bundle
_MAX_AT_A_TIME = 4  # bundles, if workers fail repeatedly at once
_REST_WAIT = 0.8  # seconds for bundles to be finished before workers are forked


class FailureBundles(Extension):
    """Keeps the events of a launch, and writes a bundle when the job fails.

    A bundle is written on its own thread, so that neither the report nor a restart waits for it.
    The thread is not a daemon thread: the process ends after the bundle is written, which takes
    less than two seconds.

    Args:
        context: the launch.
        folder: the folder of bundles; empty for the folder of the run.
        which: `last`, or `all` to include failures followed by a restart.
        write: writes a bundle; None for `write_bundle`.
    """

    def __init__(
        self,
        context: PluginContext,
        folder: str,
        which: str,
        write: Callable[[FailedAttempt, PluginContext, str], None] | None = None,
    ) -> None:
        self._context = context
        self._folder = folder
        self._which = which
        self._write = write
        self._history = FailureHistory()
        self._end: Event | None = None
        self._threads: list[threading.Thread] = []

    def handle(self, event: Event) -> None:
        """Keep the next event; after a restart, write a bundle if `which` is `all`."""
        self._history.note(event)
        if event.name == "plaunch.launcher.finished":
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
        write = self._write
        if write is None:
            from plaunch_report.failure_bundle.bundle import write_bundle as write  # failures only

        thread = threading.Thread(
            target=write,
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
