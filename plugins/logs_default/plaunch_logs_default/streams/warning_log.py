"""Warnings of threads that must not block on a log handler."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("plaunch")


class WarningLog:
    """Logs warnings without blocking the caller.

    A log handler usually writes to stderr, which may be the console that is blocked. So each
    warning is logged by a short-lived thread; there are a few per job at most.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._pending: list[Callable[[], None]] = []

    def warn(self, message: str, *args: object) -> None:
        """Log a warning on another thread."""
        write = partial(logger.warning, message, *args)
        thread = threading.Thread(target=write, name="plaunch-warning", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No more threads, or the interpreter is shutting down: `flush` logs it.
            self._pending.append(write)
        else:
            self._threads.append(thread)

    def flush(self, timeout: float) -> None:
        """Wait until all warnings are logged, at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self._threads:
            self._threads.pop().join(max(deadline - time.monotonic(), 0.0))
        while self._pending:
            self._pending.pop(0)()
