"""The one place where an agent's loop waits, and what wakes it from other threads."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from plaunch.durations import milliseconds
from plaunch.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from plaunch.agent.watchdog import LoopWatchdog

T = TypeVar("T")

# Seconds between two polls if every event wakes the loop. Polling ten times a second would be most
# of the launcher's CPU time; a lost wake-up would delay the job, but not block it.
QUIET_INTERVAL = 2.0


class WakeUp:
    """A descriptor that becomes readable when any thread calls `wake`, and at every signal.

    Only the thread that waits for it, and signal handlers on that thread, call `clear`.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.RLock()  # a signal handler may interrupt a `wake` of its own thread
        self._closed = False
        self._is_clearing = False
        self._on_signals: Callable[[bytes], None] | None = None

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._read

    def wake(self) -> None:
        """Make the descriptor readable; a no-op after `close`."""
        # A full pipe is readable already.
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._closed:
                os.write(self._write, b"\0")

    def wake_at_signals(self, on_signals: Callable[[bytes], None]) -> int:
        """Let every signal wake, and return what `signal.set_wakeup_fd` had before.

        The C handler of a signal writes its number here at once, on the thread that got the signal.
        Python's handler runs later, on the main thread, and the handlers of several signals run in
        the order of their numbers. So only the descriptor has the order in which signals arrived,
        and it wakes a main thread that did not get the signal itself.

        Args:
            on_signals: called by `clear` with the numbers of signals, in the order of arrival.
        """
        self._on_signals = on_signals
        return signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def clear(self) -> bool:
        """Make the descriptor unreadable again, and report the signals that made it readable.

        Returns:
            False if this call is by a signal handler that interrupts another one, which reports
            the signal. If the other one is just over, the descriptor stays readable instead.
        """
        if self._is_clearing:
            return False
        self._is_clearing = True
        try:
            while data := os.read(self._read, 4096):
                numbers = data.replace(b"\0", b"")
                if numbers and self._on_signals is not None:
                    self._on_signals(numbers)
        except BlockingIOError:
            pass
        finally:
            self._is_clearing = False
        return True

    def close(self) -> None:
        """Release the descriptors."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read)
                os.close(self._write)


class Poller:
    """Waits for descriptors, for a time, or to be woken.

    Args:
        watchdog: is notified when the loop goes to sleep and wakes.
    """

    def __init__(self, watchdog: LoopWatchdog) -> None:
        self.is_closed = False
        self.watchdog = watchdog
        self.wake_up = WakeUp()

    def poll(self, fds: Iterable[int], timeout: float | None) -> None:
        """Wait until one of `fds` is readable, at most `timeout` seconds."""
        poller = select.poll()
        poller.register(self.wake_up.fileno(), select.POLLIN)
        for fd in fds:
            poller.register(fd, select.POLLIN)
        self.watchdog.sleeps(timeout)
        poller.poll(milliseconds(timeout))
        self.watchdog.wakes()
        self.wake_up.clear()

    def close(self) -> None:
        """Release the descriptors; the loop has ended."""
        self.is_closed = True
        self.wake_up.close()
        self.watchdog.ends()


class BackgroundCall(Generic[T]):
    """A call that may block for long, in a daemon thread; wakes the loop when it is done."""

    result: T  # once it has returned

    def __init__(self, name: str, function: Callable[[], T], wake_up: WakeUp) -> None:
        self.error: BaseException | None = None
        self.duration = 0.0
        self._function = function
        self._wake_up = wake_up
        self._done = False
        self._thread = threading.Thread(target=self._run, name=f"plaunch-{name}", daemon=True)
        # It may run a plugin's code, whose child processes inherit the signal mask, so no signal
        # may be blocked. Python's handlers run on the main thread, which every signal wakes.
        start_thread(self._thread)

    def is_done(self) -> bool:
        """Whether the call has returned or raised."""
        return self._done

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread to end, which it is about to do once `is_done`.

        Args:
            timeout: how long at most, in seconds.
        """
        # Forking while another thread runs may deadlock the child, so wait until it has ended.
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
