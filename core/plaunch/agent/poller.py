"""Where an agent's loop waits, what wakes it, and the watchdog that finds it stuck."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from plaunch.durations import milliseconds
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")

# Seconds between two turns of a loop that every event wakes. Turns are most of an idle launcher's
# processor time; a lost wake-up would delay the job, but not block it.
QUIET_INTERVAL = 5.0

CALL_BOUND = 10.0  # seconds of one call of a plugin's code in the loop
TURN_BOUND = 60.0  # seconds of one turn of the loop, beyond what stopping workers may take


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


class LoopWatchdog:
    """Records when the loop sleeps and wakes; any thread may ask whether it is overdue.

    A loop that sleeps is alive until its timeout, which may be infinite: while nodes meet, only the
    end of the rendezvous may wake it, hours later. One that is awake is alive for `bound` seconds,
    which exceed the longest stop of workers, and for less while it calls code of a plugin. Before
    its first sleep, and after its end, it is never overdue.

    Args:
        bound: seconds.
        progress: returns when the agent last made progress of unknown duration, on the monotonic
            clock: output shown on a slow console, or a slow call of a plugin that it waits for.
        clock: seconds that never go back.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        bound: float = TURN_BOUND,
        *,
        progress: Callable[[], float] = lambda: -math.inf,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.bound = bound
        self._progress = progress
        self._clock = clock
        self._wall_clock = wall_clock
        # One thread writes these two numbers and others read them; each is replaced as a whole.
        self._last_call = clock()
        self._due = math.inf

    def before_poll(self, seconds: float | None) -> None:
        """Called when the loop goes to sleep for at most `seconds`; None for no timeout."""
        self._expect(math.inf if seconds is None else seconds + self.bound)

    def after_poll(self) -> None:
        """Called when the loop wakes."""
        self._expect(self.bound)

    def touch(self) -> None:
        """Called before each of many bounded calls of plugins: the loop is alive meanwhile.

        A no-op before the loop has begun, and after its end.
        """
        if self._due != math.inf:
            self._expect(self.bound)

    def _expect(self, seconds: float) -> None:
        """The loop is alive now; its next call is due within `seconds`."""
        self._last_call = now = self._clock()
        self._due = now + seconds

    @contextlib.contextmanager
    def calling(self, seconds: float = CALL_BOUND) -> Iterator[None]:
        """The loop calls code of a plugin, which should not take longer than `seconds`."""
        self._expect(seconds)
        try:
            yield
        finally:
            self.after_poll()

    def stop(self) -> None:
        """Called at the end of the loop."""
        self._expect(math.inf)

    def overdue(self) -> float:
        """Seconds since the last call of a loop whose next one is overdue; else 0."""
        due = self._due
        now = self._clock()
        if now <= due or now <= self._progress() + self.bound:
            return 0.0
        return now - self._last_call

    def patience(self) -> float:
        """Seconds between the last call of the loop and the next one due."""
        return self._due - self._last_call

    def last_progress(self) -> float:
        """When the loop was last alive, in seconds since the epoch: now, unless it is overdue."""
        return self._wall_clock() - self.overdue()


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
        self.watchdog.before_poll(timeout)
        poller.poll(milliseconds(timeout))
        self.watchdog.after_poll()
        self.wake_up.clear()

    def close(self) -> None:
        """Release the descriptors; the loop has ended."""
        self.is_closed = True
        self.wake_up.close()
        self.watchdog.stop()


class BackgroundCall(BoundedCall, Generic[T]):
    """A call that may block for long, and wakes the loop when it is done."""

    result: T  # once it has returned

    def __init__(self, name: str, function: Callable[[], T], wake_up: WakeUp) -> None:
        self.duration = 0.0  # seconds
        self._done = False
        self._wake_up = wake_up
        super().__init__(name, function)

    def is_done(self) -> bool:
        """Whether the call has returned or raised."""
        return self._done

    def _run(self) -> None:
        began = time.monotonic()
        super()._run()
        self.duration = time.monotonic() - began
        self._done = True
        self._wake_up.wake()
