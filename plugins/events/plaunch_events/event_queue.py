"""Bringing events to handlers, none of which can keep the agent waiting."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from plaunch.plugin import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from plaunch.events import Event, EventHandler

logger = logging.getLogger("plaunch")

MAX_WAITING = 10_000  # events that wait for one handler; further ones are dropped
HEAD_START = 0.25  # seconds for the start of workers before a handler begins to work
LAST_WAIT = 2.0  # seconds for all handlers together, at the end of a launch
FIRST_PAUSE = 1.0  # seconds after an event that a handler failed with
LONGEST_PAUSE = 60.0
_REST_WAIT = 1.0  # seconds for a handler to come to rest before workers are forked


class EventQueue:
    """One event handler, on a thread of its own.

    The thread begins with the first event, but lets the launch have the processors until `release`
    or for `head_start` seconds. Nothing here waits for the handler but `rest` and `wait`, whose
    waits are bounded.

    An event with which the handler raises is lost, as a server may be away or the event be one that
    it cannot take. The next one is tried after a pause, which grows from failure to failure; events
    wait meanwhile. The first failure in a row is logged, and so is the end of the row, but not more
    often than once in the longest pause.

    Args:
        name: what the handler is called.
        handler: takes the events.
        origin: whose it is, for messages; empty if it comes with plaunch.
        who: how messages call it, if it is no event handler.
        limit: how many events may wait.
        head_start: seconds; None to wait for `release`.
        pauses: the first pause and the longest one, in seconds.
        clock: seconds that never go back.
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
        self.dropped = 0  # events that it never had: too many waited, or it failed
        self._who = who or f"event handler {name!r}" + (f" ({origin})" if origin else "")
        self._trouble = _Trouble(*pauses, clock)
        self._handler = handler
        self._limit = limit
        self._head_start = head_start
        self._changed = threading.Condition()
        self._events: deque[Event] = deque()
        self._thread: threading.Thread | None = None
        self._is_released = False
        self._is_resting = False
        self._is_ending = False
        self._is_over = False  # closed, failed or given up: nothing is taken any more

    def __repr__(self) -> str:
        return f"EventQueue({self.name!r}, waiting={len(self._events)}, dropped={self.dropped})"

    def put(self, event: Event) -> None:
        """Take one event; never waits."""
        with self._changed:
            if self._is_over or self._is_ending:
                return
            if len(self._events) >= self._limit:
                self.dropped += 1
                self._trouble.note_loss()
                return
            self._events.append(event)
            problem = self._wake()
        self._say(problem)

    def release(self) -> None:
        """Let the handler work from now on; also after `rest`."""
        with self._changed:
            self._is_released = True
            self._is_resting = False
            problem = self._wake()
        self._say(problem)

    def rest(self, patience: float = _REST_WAIT) -> bool:
        """End the thread until `release`, for the process to fork; False if it could not be.

        Its handler may hold a lock, which nobody would ever release in the child.
        """
        with self._changed:
            self._is_resting = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None:
            return True
        thread.join(patience)
        return not thread.is_alive()

    def finish(self) -> None:
        """Let the handler close once it has had all events; `wait` tells whether it has."""
        with self._changed:
            self._is_ending = self._is_released = True
            self._is_resting = False
            problem = self._wake()
        self._say(problem)

    def wait(self, until: float) -> None:
        """Wait for the handler to close, at most `until` on the monotonic clock; say what is lost.

        Called once, after `finish`.
        """
        thread = self._thread
        if thread is not None:
            thread.join(max(until - time.monotonic(), 0.0))
        with self._changed:
            left = len(self._events)
            is_stuck = not self._is_over
            self._is_over = True
            self._events.clear()
        trouble = self._trouble
        too_slow_for = self.dropped - trouble.failures - trouble.missed
        if too_slow_for > 0:
            logger.warning("%s was too slow: %d events were dropped", self._who, too_slow_for)
        if trouble.failures:
            logger.warning(
                "%s failed with %d event(s) in all, which are lost%s; the last time with %s",
                self._who,
                trouble.failures,
                f", as are {trouble.missed} that came meanwhile" if trouble.missed else "",
                trouble.cause,
            )
        if is_stuck:
            logger.warning(
                "%s has not come to its end and is given up; %d events are lost", self._who, left
            )

    def _wake(self) -> str:
        """Have a thread at work; what to say if there can be none. The lock is held."""
        self._changed.notify_all()
        if self._thread is not None or self._is_over or self._is_resting:
            return ""
        thread = threading.Thread(target=self._run, name=f"plaunch-events-{self.name}", daemon=True)
        try:
            # What the handler starts inherits the mask of signals, and must not be deaf.
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
            except BaseException as error:  # noqa: BLE001 - a handler never harms the job
                self._pause(error)
            else:
                self._resume()

    def _pause(self, error: BaseException) -> None:
        """Let some time go by after a failure, unless there is none left."""
        cause = one_line(error)  # which runs somebody else's code, and so needs no lock
        with self._changed:
            if self._is_over:
                return  # who was given up may not speak after the end
            self.dropped += 1
            is_news = self._trouble.note_failure(cause)
            pause = self._trouble.pause
        if is_news:
            logger.warning(
                "%s failed with %s; the event is lost, the job goes on, and it is called again "
                "after a pause",
                self._who,
                cause,
            )
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_resting or self._is_ending or self._is_over, pause
            )

    def _resume(self) -> None:
        """Say that the handler works again, if it was said that it did not."""
        if not self._trouble.is_any:
            return
        with self._changed:
            outage = self._trouble.note_success()
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
            self._say(problem)
        self._is_over = True

    def _switch_off(self, cause: str) -> str:
        """Give the handler nothing any more; what to say of that. The lock is held."""
        # Who was given up may not speak after the end.
        problem = "" if self._is_over else f"failed and is switched off; the job goes on: {cause}"
        self._is_over = True
        self._events.clear()
        return problem

    def _say(self, problem: str) -> None:
        if problem:
            logger.warning("%s %s", self._who, problem)


class _Trouble:
    """Whether a handler fails at the moment, since when, and how long to leave it in peace."""

    def __init__(self, first: float, longest: float, clock: Callable[[], float]) -> None:
        self.failures = 0
        self.missed = 0  # events that came while it failed, and too many waited
        self.cause = ""
        self.pause = 0.0  # seconds
        self.is_any = False  # whether it failed the last time that it was called
        self._first = first
        self._longest = longest
        self._clock = clock
        self._since = 0.0
        self._lost = 0
        self._told_at: float | None = None
        self._is_told = False

    def note_failure(self, cause: str) -> bool:
        """Whether it is news."""
        self.failures += 1
        self.cause = cause
        self.pause = min(2 * self.pause, self._longest) if self.is_any else self._first
        if self.is_any:
            self._lost += 1
            return False
        now = self._clock()
        self.is_any, self._since, self._lost = True, now, 1
        self._is_told = self._told_at is None or now - self._told_at >= self._longest
        if self._is_told:
            self._told_at = now
        return self._is_told

    def note_loss(self) -> None:
        """An event came while too many waited."""
        self._lost += 1
        self.missed += self.is_any

    def note_success(self) -> tuple[float, int] | None:
        """For how long it has failed, in seconds, and what was lost; None if that is no news."""
        self.is_any = False
        return (self._clock() - self._since, self._lost) if self._is_told else None


def close_queues(queues: Iterable[EventQueue], patience: float = LAST_WAIT) -> None:
    """Let all handlers come to their end, at the same time and within `patience` seconds."""
    until = time.monotonic() + patience
    all_of_them = tuple(queues)
    for queue in all_of_them:
        queue.finish()
    for queue in all_of_them:
        queue.wait(until)
