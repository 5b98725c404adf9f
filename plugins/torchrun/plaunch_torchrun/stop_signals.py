"""The signal handlers of a process context that is used without an agent."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

from plaunch.errors import SignalException, UsageError
from plaunch.process import DEFAULT_SIGNALS, is_same_request, parse_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Any

_log = logging.getLogger("plaunch")


class StopSignals:
    """Makes stop signals raise `SignalException`, as torchrun's library does.

    A signal that arrives inside a `held` block is raised at its end. After the first signal,
    further ones call `escalate` instead. Those that belong to the same request are ignored: a
    terminal's key that another process forwards, for example.

    Args:
        escalate: skips the grace of the stop.
        clock: seconds that never go back.
    """

    def __init__(
        self, escalate: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._escalate = escalate
        self._clock = clock
        self._handlers: dict[signal.Signals, _StopSignalHandler] = {}
        self._depth = 0
        self._asked_at: float | None = None
        self._pending: signal.Signals | None = None

    def install(self) -> None:
        """Install handlers for the signals in `TORCHELASTIC_SIGNALS_TO_HANDLE`.

        Invalid names are logged and skipped. A SIGHUP that was inherited as ignored (nohup) stays
        ignored. On a thread other than the main one nothing can be installed, which is logged.
        """
        if threading.current_thread() is not threading.main_thread():
            _log.warning(
                "no signal handlers are installed, because the workers are started on thread %r "
                "and only the main thread may install any; if a signal ends this process, the "
                "workers may outlive it",
                threading.current_thread().name,
            )
            return
        for signum in _signals_to_handle():
            previous: Any = signal.getsignal(signum)
            if signum == signal.SIGHUP and previous == signal.SIG_IGN:
                continue
            handler = _StopSignalHandler(self._receive, previous)
            self._handlers[signum] = handler
            signal.signal(signum, handler)

    def restore(self) -> None:
        """Restore the previous handlers, unless another one was installed since."""
        on_main_thread = threading.current_thread() is threading.main_thread()
        for signum, handler in self._handlers.items():
            handler.retire()
            on_top: object = signal.getsignal(signum)
            if on_main_thread and on_top is handler:
                signal.signal(signum, handler.successor())
        self._handlers.clear()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Defer the first signal until the outermost of these blocks ends."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth and self._pending is not None:
                signum, self._pending = self._pending, None
                raise _exception(signum)

    def _receive(self, signum: signal.Signals) -> None:
        now, asked_at = self._clock(), self._asked_at
        is_first = asked_at is None
        if asked_at is None:
            self._asked_at = now
        elif is_same_request(signum, now - asked_at):
            return
        if not self._depth:
            raise _exception(signum)
        if is_first:
            self._pending = signum
        else:
            self._escalate()


class _StopSignalHandler:
    """An installed handler; once retired, it forwards signals to the handler that it replaced.

    A retired handler may still be called: another context may have restored it after its own, or
    `restore` may have run on a thread that cannot set handlers.
    """

    def __init__(self, receive: Callable[[signal.Signals], None], previous: Any) -> None:
        self._receive: Callable[[signal.Signals], None] | None = receive
        self._previous = previous

    def retire(self) -> None:
        self._receive = None

    def successor(self) -> Any:
        """Return the nearest replaced handler that is not retired, or the default one."""
        below = self._previous
        if isinstance(below, _StopSignalHandler) and below._receive is None:
            return below.successor()
        # None stands for a handler that was not installed from Python and cannot be restored.
        return signal.SIG_DFL if below is None else below

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self._receive is not None:
            self._receive(signal.Signals(signum))
            return
        below = self.successor()
        signal.signal(signum, below)
        if callable(below):
            below(signum, frame)
        elif below == signal.SIG_DFL:
            os.kill(os.getpid(), signum)


def _signals_to_handle() -> list[signal.Signals]:
    found: list[signal.Signals] = []
    for name in os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", DEFAULT_SIGNALS).split(","):
        try:
            found.extend(parse_signals(name))
        except UsageError as error:
            _log.warning("TORCHELASTIC_SIGNALS_TO_HANDLE: %s", error)
    return found


def _exception(signum: signal.Signals) -> SignalException:
    return SignalException(f"process {os.getpid()} received {signum.name}", signum)
