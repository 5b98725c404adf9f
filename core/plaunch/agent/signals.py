"""Signals to the launcher, made into something that the agent's loop can wait for."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections import deque
from typing import TYPE_CHECKING

from plaunch.process.signals import SignalAction, SignalPolicy, parse_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import FrameType

logger = logging.getLogger("plaunch")

DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


class StopOn:
    """The policy of an agent that is given none: every listed signal stops the job."""

    def __init__(self, signals: Collection[signal.Signals]) -> None:
        self._signals = tuple(signals)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> StopOn:
        """Read the list from `TORCHELASTIC_SIGNALS_TO_HANDLE`, as torchrun's library does."""
        return cls(parse_signals(environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", DEFAULT_SIGNALS)))

    def signals(self) -> Collection[signal.Signals]:
        """The signals of the list."""
        return self._signals

    def action(self, signum: signal.Signals) -> SignalAction:
        """Always stop."""
        del signum
        return SignalAction.STOP


class WakeUp:
    """A descriptor that becomes readable when somebody calls `wake`, from any thread."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._read

    def wake(self) -> None:
        """Make the descriptor readable; a no-op after `close`."""
        # A full pipe is readable already.
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._closed:
                os.write(self._write, b"\0")

    def wake_at_signals(self) -> int:
        """Let every signal wake, and return what `signal.set_wakeup_fd` had before.

        A Python handler alone would not do: the kernel may deliver a signal to another thread, and
        then nothing interrupts the main thread's wait.
        """
        return signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def clear(self) -> None:
        """Make the descriptor unreadable again."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def close(self) -> None:
        """Release the descriptors."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read)
                os.close(self._write)


class SignalInbox:
    """Installs handlers for a policy's signals and keeps what arrives until the loop takes it.

    Used as a context manager around an agent's run. Handlers need the main thread; on another one
    a warning is logged and signals keep their disposition. A SIGHUP that was already ignored, as
    under nohup, stays ignored. Leaving the context puts the previous handlers back.

    Args:
        policy: which signals to handle.
        wake_up: is woken at every signal.
        on_repeat: called inside the signal handler for every stop signal after the first one.
    """

    def __init__(
        self, policy: SignalPolicy, wake_up: WakeUp, on_repeat: Callable[[], None]
    ) -> None:
        self._policy = policy
        self._wake_up = wake_up
        self._on_repeat = on_repeat
        self._received: deque[signal.Signals] = deque()
        self._judged: list[tuple[signal.Signals, SignalAction]] = []
        self._previous: dict[signal.Signals, Callable[[int, FrameType | None], object] | int] = {}
        self._previous_wake_up = -1
        self._is_installed = False
        self._stops = 0

    def __enter__(self) -> SignalInbox:
        if threading.current_thread() is not threading.main_thread():
            logger.warning(
                "signals are not handled: the agent does not run on the main thread of this "
                "process; workers may outlive it if it is ended by a signal"
            )
            return self
        self._previous_wake_up = self._wake_up.wake_at_signals()
        self._is_installed = True
        for signum in self._policy.signals():
            previous = signal.getsignal(signum)
            if signum == signal.SIGHUP and previous == signal.SIG_IGN:
                logger.info("SIGHUP is ignored, as the caller (nohup?) wished")
                continue
            signal.signal(signum, self._on_signal)
            # None stands for a handler that was not installed from Python and cannot be put back.
            self._previous[signum] = signal.SIG_DFL if previous is None else previous
        return self

    def __exit__(self, *exc_info: object) -> None:
        for signum, previous in self._previous.items():
            signal.signal(signum, previous)
        self._previous.clear()
        if self._is_installed:
            self._is_installed = False
            signal.set_wakeup_fd(self._previous_wake_up)

    def take(self) -> list[tuple[signal.Signals, SignalAction]]:
        """All signals since the last call, in order, with what the policy makes of them."""
        self._judge()
        taken, self._judged = self._judged, []
        return taken

    def has_stop(self) -> bool:
        """Whether one that has not been taken yet means to stop; for the loop, where it is held."""
        self._judge()
        return any(action is SignalAction.STOP for _, action in self._judged)

    def _judge(self) -> None:
        """Ask the policy once for each signal."""
        while self._received:
            signum = self._received.popleft()
            action = self._policy.action(signum)
            self._stops += action is SignalAction.STOP
            self._judged.append((signum, action))

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        del frame
        if self._stops:
            # The first stop has been acted on; whoever asks again wants it at once.
            self._on_repeat()
        self._received.append(signal.Signals(signum))
