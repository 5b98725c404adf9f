"""Calls of plugins' code that nobody waits for longer than allowed."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from plaunch.agent.background import signals_blocked

if TYPE_CHECKING:
    from collections.abc import Callable

UNHURRIED = 1.0  # seconds before it is asked whether somebody wants the launch to stop
LOOK = 0.1  # seconds between two such questions


class BoundedCall:
    """A call on a thread of its own, which begins at once and is left behind if it does not return.

    No signal is delivered to the thread. Where the system gives no thread, the call is made here.
    The thread is over when the call is: a process with one thread only can be forked.

    Args:
        name: of the thread.
        function: what is called.
    """

    def __init__(self, name: str, function: Callable[[], object]) -> None:
        self.result: object = None
        self.error: BaseException | None = None
        self._function = function
        self._thread = threading.Thread(target=self._run, name=f"plaunch-{name}", daemon=True)
        try:
            with signals_blocked():
                self._thread.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            self._run()

    def wait(self, seconds: float, is_unwanted: Callable[[], bool] | None = None) -> bool:
        """Wait for the end of the call; False if it has not come.

        Args:
            seconds: for how long at most.
            is_unwanted: asked from time to time after a second: whether to stop waiting.
        """
        thread = self._thread
        if thread.ident is None:
            return True
        if is_unwanted is None:
            thread.join(seconds)
            return not thread.is_alive()
        until = time.monotonic() + seconds
        thread.join(min(seconds, UNHURRIED))
        while thread.is_alive():
            remaining = until - time.monotonic()
            if remaining <= 0 or is_unwanted():
                return False
            thread.join(min(remaining, LOOK))
        return True

    def _run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - also SystemExit; whoever waits looks at it
            self.error = error
