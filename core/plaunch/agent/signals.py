"""Signals to the launcher: those that the agent's loop waits for, and those that workers get."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from plaunch.errors import PlaunchError, UsageError
from plaunch.process.marks import owns_process
from plaunch.process.own_process import raise_priority
from plaunch.process.proc import PROC, find_processor_wait, read_masks
from plaunch.process.signals import DEFAULT_SIGNALS, SignalAction, SignalPolicy, parse_signals

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from plaunch.agent.poller import WakeUp
    from plaunch.agent.workers import Workers

logger = logging.getLogger("plaunch")

_REPORT_TIME = 2.0  # seconds to write the report after the run of an agent

# Signals that end a program which does not handle them, and are sent on purpose. Stop signals are
# not among them: a policy that does not list one wants its default action.
_FATAL = (
    "SIGUSR1",
    "SIGUSR2",
    "SIGALRM",
    "SIGVTALRM",
    "SIGPROF",
    "SIGXCPU",
    "SIGIO",
    "SIGPWR",
    "SIGSTKFLT",
)


class ReceivedSignal(NamedTuple):
    """A signal that has arrived.

    Args:
        signum: the signal.
        action: what the policy decides; STOP also for one that would end any program.
        at: when it arrived, in seconds that never go back, without the time that the main thread
            waited for a processor: the signal may have been sent at any time of it.
    """

    signum: signal.Signals
    action: SignalAction
    at: float


class SignalInbox:
    """Installs handlers for a policy's signals and keeps what arrives until the loop takes it.

    Used as a context manager around an agent's run. On the command line, it raises the priority of
    the main thread, so that signals are handled in time on a busy machine. Handlers need the main
    thread; on another one a warning is logged and signals keep their disposition. A SIGHUP that was
    already ignored, as under nohup, stays ignored. Unhandled signals such as SIGUSR1 would end
    the launcher without a message: they are handled as stop signals. Leaving the context restores
    the previous handlers.

    Signals that are sent while this process is suspended, or waits for a processor, arrive together
    when it runs again. The kernel does not keep their order, and delivers the one with the highest
    number first.

    Args:
        policy: which signals to handle.
        wake_up: is woken at every signal.
        proc: the folder of this process in /proc.
        clock: seconds that never go back.

    Raises:
        UsageError: the policy lists something that is not a signal, or cannot be handled; the
            previous handlers are restored.
    """

    def __init__(
        self,
        policy: SignalPolicy,
        wake_up: WakeUp,
        *,
        proc: str = PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._policy = policy
        # The policy of a launch has the name of its plugin.
        self._who = getattr(policy, "who", f"signal policy {type(policy).__name__}")
        self._wake_up = wake_up
        self._proc = proc
        self._received: deque[tuple[signal.Signals, float]] = deque()
        self._recorded_early: set[int] = set()  # noted before their handler was called
        self._processor_wait = 0.0  # as last known
        self._decided: list[ReceivedSignal] = []
        self._previous: dict[signal.Signals, Callable[[int, FrameType | None], object] | int] = {}
        self._previous_wake_up = -1
        self._is_installed = False
        self._listed: frozenset[int] = frozenset()

    def __enter__(self) -> SignalInbox:
        if threading.current_thread() is not threading.main_thread():
            logger.warning(
                "signals are not handled: the agent does not run on the main thread of this "
                "process; workers may outlive it if it is ended by a signal"
            )
            return self
        if owns_process():
            raise_priority()
        try:
            self._install()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        if owns_process():
            # Only the report is left to write, and a second stop signal must not interrupt that.
            self._previous = {
                signum: _DeferredHandler(signum, previous, self._clock)
                for signum, previous in self._previous.items()
            }
        self._restore()

    def _install(self) -> None:
        listed = list(self._policy.signals())
        self._previous_wake_up = self._wake_up.wake_at_signals(self._note)
        self._is_installed = True
        for signum in listed:
            self._handle(signum)
        self._listed = frozenset(listed)
        masks = read_masks(self._proc)
        handled = 0 if masks is None else masks[1]  # else only what Python knows
        for name in _FATAL:
            fatal = getattr(signal.Signals, name, None)
            if fatal is None or fatal in self._listed:
                continue
            disposition = signal.getsignal(fatal)
            if isinstance(disposition, _DeferredHandler):  # an earlier run's
                would_end_us = disposition.before == signal.SIG_DFL
            else:
                # A handler that was not installed from Python (faulthandler's) is not known there.
                would_end_us = disposition == signal.SIG_DFL and not handled >> (fatal - 1) & 1
            if would_end_us:
                self._handle(fatal)

    def _handle(self, signum: signal.Signals) -> None:
        try:
            previous = signal.getsignal(signum)
            if signum == signal.SIGHUP and previous == signal.SIG_IGN:
                logger.info("SIGHUP is ignored, as the caller (nohup?) has set it")
                return
            signal.signal(signum, self._on_signal)
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(
                f"{self._who} wants to handle {signum!r}, which "
                f"the system refuses ({error}); signals() must list signals that can be handled"
            ) from error
        # None stands for a handler that was not installed from Python and cannot be put back.
        self._previous[signum] = signal.SIG_DFL if previous is None else previous

    def _restore(self) -> None:
        for signum, previous in self._previous.items():
            signal.signal(signum, previous)
        self._previous.clear()
        if self._is_installed:
            self._is_installed = False
            signal.set_wakeup_fd(self._previous_wake_up)

    def take(self) -> list[ReceivedSignal]:
        """All signals since the last call, in the order of arrival."""
        self._apply_policy()
        taken, self._decided = self._decided, []
        return taken

    def has_stop(self) -> bool:
        """Whether a stop signal has arrived that is not taken yet; for code that holds the loop."""
        self._apply_policy()
        return any(received.action is SignalAction.STOP for received in self._decided)

    def is_listed(self, signum: signal.Signals) -> bool:
        """Whether the policy lists a signal; others end any program."""
        return signum in self._listed

    def _apply_policy(self) -> None:
        """Ask the policy once for each signal."""
        while self._received:
            signum, at = self._received.popleft()
            action = self._action(signum) if self.is_listed(signum) else SignalAction.STOP
            self._decided.append(ReceivedSignal(signum, action, at))

    def _action(self, signum: signal.Signals) -> SignalAction:
        try:
            action = self._policy.action(signum)
        except Exception as error:  # noqa: BLE001 - a plugin's code, and the signal must not be lost
            problem = str(error) if isinstance(error, PlaunchError) else repr(error)
        else:
            if isinstance(action, SignalAction):
                return action
            problem = f"it answers {action!r}, which is not a SignalAction"
        default = SignalAction.IGNORE
        if signum in parse_signals(DEFAULT_SIGNALS):
            default = SignalAction.STOP
        logger.error(
            "%s does not say what %s means: %s. The default applies: %s",
            self._who,
            signum.name,
            problem,
            default.value,
        )
        return default

    def _note(self, numbers: bytes) -> None:
        """Record signals in the order of arrival."""
        at = self._now()
        for number in numbers:
            if number in self._previous:
                self._received.append((signal.Signals(number), at))
                self._recorded_early.add(number)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        """Record what has arrived, and when.

        The descriptor names it in the order of arrival. It does not name `signum` only if other
        code of this process has replaced the descriptor.
        """
        if self._wake_up.clear():
            if signum not in self._recorded_early:
                self._received.append((signal.Signals(signum), self._now()))
            self._recorded_early.discard(signum)
        self._wake_up.wake()  # the interrupted wait continues unless this wakes it

    def _now(self) -> float:
        wait = find_processor_wait(self._proc)
        if wait is not None:
            self._processor_wait = wait
        return self._clock() - self._processor_wait


class _DeferredHandler:
    """Handles a signal after the run of an agent in plaunch's own process.

    It is ignored for some seconds; after that, the previous handler gets it.
    """

    def __init__(
        self,
        signum: signal.Signals,
        previous: Callable[[int, FrameType | None], object] | int,
        clock: Callable[[], float],
    ) -> None:
        # Do not wrap the one of an earlier run.
        while isinstance(previous, _DeferredHandler):
            previous = previous.before
        self.before: Callable[[int, FrameType | None], object] | int = previous
        self._signum = signum
        self._clock = clock
        self._until = clock() + _REPORT_TIME

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self._clock() < self._until:
            return
        signal.signal(self._signum, self.before)
        signal.raise_signal(self._signum)


_APART = 1.0  # seconds; the same signal again within this time is ignored


class ForwardedSignals:
    """Passes signals on to the workers while the job continues, each once.

    A scheduler may send a signal to every launcher of a job, and each of them forwards it to all
    others. A second one would interrupt the save that the first one has begun.

    Args:
        workers: the workers of this node.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        workers: Workers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._passed: dict[signal.Signals, float] = {}  # when each was passed on last

    def pass_on(self, signum: signal.Signals, node: str = "") -> bool:
        """Pass a signal on to the workers, unless they have just got it.

        Args:
            signum: the signal.
            node: the node that has received it; empty for this one.

        Returns:
            Whether it was passed on.
        """
        where = f" on node {node}" if node else ""
        now = self._clock()
        last = self._passed.get(signum)
        if last is not None and now - last < _APART:
            logger.log(
                logging.DEBUG if node else logging.INFO,
                "%s received%s within a second of the last; the workers have it already",
                signum.name,
                where,
            )
            return False
        self._passed[signum] = now
        logger.warning("%s received%s; it is passed on and the job goes on", signum.name, where)
        self._workers.signal(signum)
        return True

    def forget(self) -> None:
        """Forget all signals, since new workers have got none."""
        self._passed.clear()
