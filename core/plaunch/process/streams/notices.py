"""Warnings from threads that must never wait for whoever reads the log."""

from __future__ import annotations

import logging
import threading
import time

logger = logging.getLogger("plaunch")


class Notices:
    """Logs warnings without ever blocking the caller.

    A log handler usually writes to stderr, which may be the very console that is blocked. Each
    warning therefore has a short-lived thread of its own; they are rare, a few per job at most.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._unsent: list[tuple[object, ...]] = []

    def warn(self, message: str, *args: object) -> None:
        """Log a warning, soon."""
        thread = threading.Thread(
            target=logger.warning, args=(message, *args), name="plaunch-notice", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # No more threads, or the interpreter is shutting down: `flush` logs it.
            self._unsent.append((message, *args))
        else:
            self._threads.append(thread)

    def flush(self, timeout: float) -> None:
        """Wait until all warnings are logged, at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self._threads:
            self._threads.pop().join(max(0.0, deadline - time.monotonic()))
        while self._unsent:
            message, *args = self._unsent.pop(0)
            logger.warning(message, *args)
