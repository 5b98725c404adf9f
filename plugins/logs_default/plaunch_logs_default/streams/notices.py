"""Warnings from threads that must never wait for a reader of the log."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("plaunch")


class Notices:
    """Logs warnings without ever blocking the caller.

    A log handler usually writes to stderr, which may be the very console that is blocked. Each
    warning therefore has a short-lived thread of its own; they are rare, a few per job at most.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._unsent: list[Callable[[], None]] = []

    def warn(self, message: str, *args: object) -> None:
        """Log a warning, soon."""
        log = partial(logger.warning, message, *args)
        thread = threading.Thread(target=log, name="plaunch-notice", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No more threads, or the interpreter is shutting down: `flush` logs it.
            self._unsent.append(log)
        else:
            self._threads.append(thread)

    def flush(self, timeout: float) -> None:
        """Wait until all warnings are logged, at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self._threads:
            self._threads.pop().join(max(deadline - time.monotonic(), 0.0))
        while self._unsent:
            self._unsent.pop(0)()
