"""Delivery of events to handlers on their own threads, so that no handler blocks the agent."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from plaunch.plugin import EVENT_HANDLERS, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from plaunch.events import Event, EventHandler
    from plaunch.plugin import EventHandlerFactory, PluginContext, PluginManager

    FoundHandlers = Mapping[str, tuple[EventHandlerFactory, dict[str, str]]]

logger = logging.getLogger("plaunch")

MAX_WAITING = 10_000  # events queued for one handler; further ones are dropped
HEAD_START = 0.25  # seconds for the start of workers before a handler is first called
LAST_WAIT = 2.0  # seconds for all handlers together, at the end of a launch
FIRST_PAUSE = 1.0  # seconds before a handler that failed is called again
LONGEST_PAUSE = 60.0
_REST_WAIT = 1.0  # seconds for the current call of a handler, before workers are forked


class EventQueue:
    """Calls one event handler on its own thread.

    The thread starts with the first event, and calls the handler after `release` or `head_start`
    seconds, to leave the processors to the starting workers. Only `rest` and `wait` wait for the
    handler, for a bounded time.

    If the handler raises, the event is lost: its server may be away, or it may not support the
    event. The next event is delivered after a pause, which grows with each failure; events are
    queued meanwhile. The first failure of an outage is logged, and so is its end, but at most once
    in `LONGEST_PAUSE` seconds.

    Args:
        name: the name of the handler.
        handler: the handler.
        origin: its plugin, for messages; empty if it comes with plaunch.
        who: how messages name it, if it is not an event handler.
        limit: the maximum number of queued events.
        head_start: seconds; None to wait for `release`.
        pauses: the first and the longest pause after a failure, in seconds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        handler: EventHandler,
        *,
        origin: str = "",
        who: str = "",
        limit: int = MAX_WAITING,
        head_start: float | None = HEAD_START,
        pauses: tuple[float, float] = (FIRST_PAUSE, LONGEST_PAUSE),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.dropped = 0  # events lost because the queue was full or the handler failed
        self._who = who or f"event handler {name!r}" + (f" ({origin})" if origin else "")
        self._failures = _HandlerFailures(*pauses, clock)
        self._handler = handler
        self._limit = limit
        self._head_start = head_start
        self._changed = threading.Condition()
        self._events: deque[Event] = deque()
        self._thread: threading.Thread | None = None
        self._is_released = False
        self._is_resting = False
        self._is_ending = False
        self._is_over = False  # closed, failed or abandoned: further events are ignored

    def __repr__(self) -> str:
        return f"EventQueue({self.name!r}, waiting={len(self._events)}, dropped={self.dropped})"

    def put(self, event: Event) -> None:
        """Queue one event; never blocks."""
        with self._changed:
            if self._is_over or self._is_ending:
                return
            if len(self._events) >= self._limit:
                self.dropped += 1
                self._failures.note_loss()
                return
            self._events.append(event)
            problem = self._wake()
        self._log_problem(problem)

    def release(self) -> None:
        """Start or, after `rest`, resume delivery."""
        with self._changed:
            self._is_released = True
            self._is_resting = False
            problem = self._wake()
        self._log_problem(problem)

    def rest(self, timeout: float = _REST_WAIT) -> bool:
        """Stop the thread until `release`, so that the process can fork; return whether it ended.

        Otherwise the handler may hold a lock, which would never be released in the child.
        """
        with self._changed:
            self._is_resting = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None:
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def finish(self) -> None:
        """Close the handler after the queued events; does not wait for it."""
        with self._changed:
            self._is_ending = self._is_released = True
            self._is_resting = False
            problem = self._wake()
        self._log_problem(problem)

    def wait(self, until: float) -> None:
        """Wait for the handler to close, until a monotonic time, and log what was lost.

        Call it once, after `finish`.
        """
        thread = self._thread
        if thread is not None:
            thread.join(max(until - time.monotonic(), 0.0))
        with self._changed:
            left = len(self._events)
            is_stuck = not self._is_over
            self._is_over = True
            self._events.clear()
        failures = self._failures
        too_slow_for = self.dropped - failures.count - failures.missed
        if too_slow_for > 0:
            logger.warning("%s was too slow: %d events were dropped", self._who, too_slow_for)
        if failures.count:
            logger.warning(
                "%s failed on %d event(s) in all, which are lost%s; the last error was %s",
                self._who,
                failures.count,
                f", as are {failures.missed} that came meanwhile" if failures.missed else "",
                failures.cause,
            )
        if is_stuck:
            logger.warning(
                "%s did not finish in time and is abandoned; %d events are lost", self._who, left
            )

    def _wake(self) -> str:
        """Start the thread if there is none; return a problem to log. The lock is held."""
        self._changed.notify_all()
        if self._thread is not None or self._is_over or self._is_resting:
            return ""
        thread = threading.Thread(target=self._run, name=f"plaunch-events-{self.name}", daemon=True)
        try:
            # Signals stay unblocked: processes that the handler starts inherit the signal mask.
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            return self._switch_off(one_line(error))
        self._thread = thread
        return ""

    def _run(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_released or self._is_resting, self._head_start)
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._events or self._is_resting or self._is_ending or self._is_over
                )
                if self._is_resting or self._is_over:
                    self._thread = None
                    return
                event = self._events.popleft() if self._events else None
            if event is None:
                self._close()
                return
            try:
                self._handler.handle(event)
            except BaseException as error:  # noqa: BLE001 - the job continues
                self._pause(error)
            else:
                self._resume()

    def _pause(self, error: BaseException) -> None:
        """Log a failure and wait before the next call, unless the queue is ending."""
        cause = one_line(error)  # calls the plugin's code, so the lock is not held
        with self._changed:
            if self._is_over:
                return  # abandoned: it logs nothing after the end
            self.dropped += 1
            is_logged = self._failures.note_failure(cause)
            pause = self._failures.pause
        if is_logged:
            logger.warning(
                "%s failed with %s; the event is lost, the job continues, and it is called again "
                "after a pause",
                self._who,
                cause,
            )
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_resting or self._is_ending or self._is_over, pause
            )

    def _resume(self) -> None:
        """Log that the handler works again, if its failure was logged."""
        if not self._failures.is_failing:
            return
        with self._changed:
            outage = self._failures.note_success()
            is_over = self._is_over
        if outage is not None and not is_over:
            logger.warning(
                "%s works again after %.0f s, in which it lost %d event(s)", self._who, *outage
            )

    def _close(self) -> None:
        try:
            self._handler.close()
        except BaseException as error:  # noqa: BLE001 - as above
            cause = one_line(error)
            with self._changed:
                problem = self._switch_off(cause)
            self._log_problem(problem)
        self._is_over = True

    def _switch_off(self, cause: str) -> str:
        """Stop delivery; return a problem to log. The lock is held."""
        # An abandoned handler logs nothing after the end.
        problem = "" if self._is_over else f"failed and is switched off; the job continues: {cause}"
        self._is_over = True
        self._events.clear()
        return problem

    def _log_problem(self, problem: str) -> None:
        if problem:
            logger.warning("%s %s", self._who, problem)


class _HandlerFailures:
    """Counts the failures of a handler, and decides how long to pause and what to log."""

    def __init__(self, first: float, longest: float, clock: Callable[[], float]) -> None:
        self.count = 0
        self.missed = 0  # events dropped by a full queue while it failed
        self.cause = ""  # of the last failure
        self.pause = 0.0  # seconds until the next call
        self.is_failing = False  # whether its last call failed
        self._first = first
        self._longest = longest
        self._clock = clock
        self._since = 0.0
        self._lost = 0
        self._logged_at: float | None = None
        self._is_logged = False

    def note_failure(self, cause: str) -> bool:
        """Record a failed call; return whether to log it."""
        self.count += 1
        self.cause = cause
        self.pause = min(2 * self.pause, self._longest) if self.is_failing else self._first
        if self.is_failing:
            self._lost += 1
            return False
        now = self._clock()
        self.is_failing, self._since, self._lost = True, now, 1
        self._is_logged = self._logged_at is None or now - self._logged_at >= self._longest
        if self._is_logged:
            self._logged_at = now
        return self._is_logged

    def note_loss(self) -> None:
        """Record an event dropped by a full queue."""
        self._lost += 1
        self.missed += self.is_failing

    def note_success(self) -> tuple[float, int] | None:
        """Record a successful call; return the seconds and lost events of a logged outage."""
        self.is_failing = False
        return (self._clock() - self._since, self._lost) if self._is_logged else None


def close_queues(queues: Iterable[EventQueue], timeout: float = LAST_WAIT) -> None:
    """Close all handlers, side by side, within `timeout` seconds in total."""
    until = time.monotonic() + timeout
    ending = tuple(queues)
    for queue in ending:
        queue.finish()
    for queue in ending:
        queue.wait(until)


def create_event_queues(
    manager: PluginManager, found: FoundHandlers, context: PluginContext
) -> list[EventQueue]:
    """Create the handlers, each with a queue; handlers with `wants_events = False` are left out.

    Raises:
        PluginError: a handler failed.
        UsageError: a handler cannot use its options.
    """
    queues: list[EventQueue] = []
    try:
        for name, (factory, options) in found.items():
            create = partial(_create, factory, replace(context, options=options))
            handler = manager.call(EVENT_HANDLERS, name, create)
            if handler is not None:
                origin = manager.origin(EVENT_HANDLERS, name)
                queues.append(EventQueue(name, handler, origin=origin))
    except BaseException:
        close_queues(queues)
        raise
    return queues


def _create(factory: EventHandlerFactory, context: PluginContext) -> EventHandler | None:
    """Create a handler; return None if it wants no events."""
    handler = factory(context)
    if not getattr(handler, "wants_events", True):
        return None
    for method in ("handle", "close"):
        if not callable(getattr(handler, method, None)):
            raise TypeError(f"it returned {handler!r}, which has no method {method!r}")
    return handler
