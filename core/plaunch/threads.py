"""Threads that plaunch needs, and calls on threads with a limit on the wait."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

from plaunch.errors import ThreadStartError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BoundedCall", "start_thread"]

_SETTLE = 0.02  # seconds after which the kernel no longer counts a thread that has ended
UNHURRIED = 1.0  # seconds of a wait before it is asked whether it is still wanted
LOOK = 0.1  # seconds between two such questions

_NO_THREAD = "can't start new thread"


def start_thread(thread: threading.Thread, *, blocks_signals: bool = False) -> None:
    """Start `thread`.

    Args:
        thread: the thread.
        blocks_signals: leave all signals to the main thread, which then gets them at once, and in
            the order of arrival. For code that starts no processes: they would inherit the mask.

    Raises:
        ThreadStartError: the system gives no more threads; the message says which limits there are.
    """
    if blocks_signals:
        # A thread inherits the mask of the one that starts it. Real-time signals without a name,
        # which nobody handles, would take Python a millisecond.
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, signal.Signals)
        try:
            start_thread(thread)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        return
    try:
        _start(thread)
    except RuntimeError as error:
        if _NO_THREAD not in str(error):
            raise  # the interpreter is ending, say
        from plaunch.capacity import describe_shortage  # errors only

        raise ThreadStartError(
            f"cannot start the thread {thread.name!r} of the launcher: {describe_shortage()}"
        ) from error


def _start(thread: threading.Thread) -> None:
    """Start a thread; try twice, because one that has just ended still counts against limits.

    Raises:
        RuntimeError: the system gives no more threads.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if _NO_THREAD not in str(error):
            raise
        time.sleep(_SETTLE)
        thread.start()


class BoundedCall:
    """A call on a thread of its own, which begins at once and is left behind if it does not return.

    Nothing ends a thread from outside: one that hangs stays, as a daemon. It blocks no signals, as
    what it starts would inherit that, and could not be ended. The thread is over when the call is:
    a process with one thread only can be forked.

    Args:
        name: of the thread.
        function: what is called.

    Raises:
        ThreadStartError: the system gives no more threads. The call is not made without one, as
            nothing would bound it then.
    """

    def __init__(self, name: str, function: Callable[[], object]) -> None:
        self.result: object = None
        self.error: BaseException | None = None
        self._function = function
        self._thread = threading.Thread(target=self._run, name=f"plaunch-{name}", daemon=True)
        start_thread(self._thread)

    def is_out(self) -> bool:
        """Whether it has not returned."""
        return self._thread.is_alive()

    def wait(self, seconds: float, is_unwanted: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the end of the call; False if it has not come.

        It is waited for in slices: a signal that another thread gets does not end a wait of the
        main thread's.

        Args:
            seconds: for how long at most.
            is_unwanted: asked from time to time after a second: whether to stop waiting.
        """
        thread = self._thread
        until = time.monotonic() + seconds
        thread.join(max(min(seconds, UNHURRIED), 0.0))
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
