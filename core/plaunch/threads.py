"""Starts threads, and makes calls on threads with a time limit."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

from plaunch.errors import ThreadStartError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BoundedCall", "FinalWork", "start_thread"]

_SETTLE = 0.02  # seconds after which the kernel no longer counts a thread that has ended
UNHURRIED = 1.0  # seconds of a wait before `is_unwanted` is called
LOOK = 0.1  # seconds between two calls of it
LINGER = 1.0  # seconds that a `CallThread` waits for another call

_NO_THREAD = "can't start new thread"
_HANDLES = ("_handle", "_os_thread_handle")  # of a thread, in Python 3.13 and since 3.14


def start_thread(thread: threading.Thread, *, blocks_signals: bool = False) -> None:
    """Start `thread`.

    Args:
        thread: the thread.
        blocks_signals: block all signals in it, so that the main thread receives them at once and
            in order. Only for code that starts no processes, which would inherit the mask.

    Raises:
        ThreadStartError: the system has no more threads; the message names the limits.
    """
    if blocks_signals:
        # A thread inherits the mask of its creator. Blocking the unnamed real-time signals, too,
        # would take Python a millisecond.
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
            raise  # for example, the interpreter is ending
        from plaunch.capacity import describe_shortage  # errors only

        raise ThreadStartError(
            f"the launcher cannot start another thread: {describe_shortage()}"
        ) from error


def _start(thread: threading.Thread) -> None:
    """Start a thread; try twice, because one that has just ended still counts against limits.

    Raises:
        RuntimeError: the system has no more threads.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if _NO_THREAD not in str(error):
            raise
        time.sleep(_SETTLE)
        # From Python 3.13 on, a handle whose start has failed counts as started.
        for name in _HANDLES:
            if (handle := getattr(thread, name, None)) is not None:
                vars(thread)[name] = type(handle)()
        thread.start()


class FinalWork(threading.Thread):
    """A thread whose work the program finishes before it exits, also after everything else.

    The command line waits for it up to `until`, and names it if it is abandoned then. It must end
    by itself by that time: the interpreter of another program waits for it without a limit.

    Args:
        what: what it makes, for messages, such as `the failure bundle`.
        function: the work.
        seconds: how long the program waits, from now on.
    """

    def __init__(self, what: str, function: Callable[[], object], seconds: float) -> None:
        super().__init__(target=function, name="plaunch-final-work", daemon=False)
        self.what = what
        self.until = time.monotonic() + seconds


class BoundedCall:
    """A call on its own thread, which starts at once and is abandoned if it does not return.

    A thread that hangs cannot be ended, and stays as a daemon. It blocks no signals: processes that
    it starts would inherit the mask. It ends with the call, so the process may fork afterwards.

    Args:
        name: the name of the thread.
        function: the function to call.

    Raises:
        ThreadStartError: the system has no more threads. The call is not made on this thread, where
            it would have no time limit.
    """

    def __init__(self, name: str, function: Callable[[], object]) -> None:
        self.result: object = None
        self.error: BaseException | None = None
        self._function = function
        self._thread = threading.Thread(target=self._run, name=f"plaunch-{name}", daemon=True)
        start_thread(self._thread)

    def is_out(self) -> bool:
        """Whether the call has not returned."""
        return self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread to end: forking while it runs may deadlock the child.

        Args:
            timeout: how long at most, in seconds.
        """
        self._thread.join(timeout)

    def wait(self, seconds: float, is_unwanted: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the call; return whether it has returned.

        Waits in slices: a signal that another thread receives does not interrupt a wait of the main
        thread.

        Args:
            seconds: the time limit.
            is_unwanted: returns whether to stop waiting; called repeatedly after a second.
        """
        until = time.monotonic() + seconds
        self.join(max(min(seconds, UNHURRIED), 0.0))
        while self.is_out():
            remaining = until - time.monotonic()
            if remaining <= 0 or is_unwanted():
                return False
            self.join(min(remaining, LOOK))
        return True

    def _run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - also SystemExit; the waiting thread handles it
            self.error = error


class CallThread:
    """A thread for calls that follow each other closely, such as one for each worker's exit.

    It starts with a call, and ends when no other call has come for a while, or at `rest`. A call
    that comes while another one runs, or hangs, gets another thread. Thread-safe.

    Args:
        linger: seconds that it waits for another call.
    """

    def __init__(self, linger: float = LINGER) -> None:
        self._linger = linger
        self._changed = threading.Condition()
        self._waiting: threading.Thread | None = None
        self._next: _RepeatedCall | None = None  # for the waiting thread

    def call(self, name: str, function: Callable[[], object]) -> BoundedCall:
        """Start a call; see `BoundedCall`, whose `wait` and `join` do not wait for the thread here.

        Raises:
            ThreadStartError: the system has no more threads.
        """
        with self._changed:
            if self._waiting is not None and self._next is None:
                self._next = call = _RepeatedCall(name, function, self._waiting)
                self._changed.notify_all()
                return call
        thread = threading.Thread(target=lambda: self._run(call), daemon=True)
        call = _RepeatedCall(name, function, thread)
        thread.name = call.name
        start_thread(thread)
        return call

    def rest(self) -> None:
        """End the thread if it waits for a call, before a fork and at the end of a launch."""
        with self._changed:
            thread = self._waiting
            if thread is None or self._next is not None:
                return
            self._waiting = None
            self._changed.notify_all()
        thread.join()

    def _run(self, first: _RepeatedCall) -> None:
        me, call = threading.current_thread(), first
        while True:
            me.name = call.name
            call.run()
            with self._changed:
                is_needed = self._waiting is None
                if is_needed:
                    self._waiting = me
                call.finish()  # the caller's next call comes after this
                if not is_needed:
                    return
                self._changed.wait_for(
                    lambda: self._next is not None or self._waiting is not me, self._linger
                )
                if self._waiting is not me:
                    return
                self._waiting, found, self._next = None, self._next, None
                if found is None:
                    return
                call = found


class _RepeatedCall(BoundedCall):
    """A call on a thread that is not its own."""

    def __init__(self, name: str, function: Callable[[], object], thread: threading.Thread) -> None:
        self.result = self.error = None
        self.name = f"plaunch-{name}"
        self._function = function
        self._thread = thread
        self._finished = threading.Event()

    def run(self) -> None:
        """Make the call."""
        self._run()

    def finish(self) -> None:
        """Wake who waits for the call."""
        self._finished.set()

    def is_out(self) -> bool:
        """Whether the call has not returned."""
        return not self._finished.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the call."""
        self._finished.wait(timeout)
