"""Calls that may block for long, kept away from the agent's loop."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from plaunch.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent.signals import WakeUp


class BackgroundCall:
    """One call in a daemon thread; wakes the loop when it is done."""

    def __init__(self, name: str, function: Callable[[], object], wake_up: WakeUp) -> None:
        self.result: object = None
        self.error: BaseException | None = None
        self.duration = 0.0
        self._function = function
        self._wake_up = wake_up
        self._done = False
        self._thread = threading.Thread(target=self._run, name=f"plaunch-{name}", daemon=True)
        # It may be in a plugin's code: what that starts inherits the mask of signals, and must not
        # be deaf. Python's handlers run on the main thread, which every signal wakes.
        start_thread(self._thread)

    def is_done(self) -> bool:
        """Whether the call has returned or raised."""
        return self._done

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread to end, which it is about to do once `is_done`.

        Args:
            timeout: how long at most, in seconds.
        """
        # Forking with another thread alive is an error in waiting, so be sure that it is gone.
        self._thread.join(timeout)

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - handed to the loop, which raises it
            self.error = error
        self.duration = time.monotonic() - began
        self._done = True
        self._wake_up.wake()
