"""Bringing events to handlers, none of which can keep the agent waiting."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from plaunch.agent.background import signals_blocked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from plaunch.events import Event, EventHandler

logger = logging.getLogger("plaunch")

MAX_WAITING = 10_000  # events that wait for one handler; further ones are dropped
HEAD_START = 0.25  # seconds for the start of workers before a handler begins to work
LAST_WAIT = 2.0  # seconds for all handlers together, at the end of a launch
_REST_WAIT = 1.0  # seconds for a handler to come to rest before workers are forked


class Delivery:
    """One event handler, on a thread of its own.

    The thread begins with the first event, but lets the launch have the processors until `release`
    or for `head_start` seconds. Nothing here waits for the handler but `rest` and `close`, whose
    waits are bounded. An exception of the handler's is logged and ends the delivery.

    Args:
        name: what the handler is called.
        handler: takes the events.
        limit: how many events may wait.
        head_start: seconds.
    """

    def __init__(
        self,
        name: str,
        handler: EventHandler,
        *,
        limit: int = MAX_WAITING,
        head_start: float = HEAD_START,
    ) -> None:
        self.name = name
        self.dropped = 0  # events that came while too many waited
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
        return f"Delivery({self.name!r}, waiting={len(self._events)}, dropped={self.dropped})"

    def put(self, event: Event) -> None:
        """Take one event; never waits."""
        with self._changed:
            if self._is_over or self._is_ending:
                return
            if len(self._events) >= self._limit:
                self.dropped += 1
                return
            self._events.append(event)
            self._wake()

    def release(self) -> None:
        """Let the handler work from now on; also after `rest`."""
        with self._changed:
            self._is_released = True
            self._is_resting = False
            self._wake()

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
            self._wake()

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
        if self.dropped:
            logger.warning(
                "event handler %r was too slow: %d events were dropped", self.name, self.dropped
            )
        if is_stuck:
            logger.warning(
                "event handler %r has not come to its end and is given up; %d events are lost",
                self.name,
                left,
            )

    def _wake(self) -> None:
        """Have a thread at work; the lock is held."""
        self._changed.notify_all()
        if self._thread is not None or self._is_over or self._is_resting:
            return
        thread = threading.Thread(target=self._run, name=f"plaunch-events-{self.name}", daemon=True)
        try:
            with signals_blocked():
                thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._fail(error)
        else:
            self._thread = thread

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
            try:
                if event is None:
                    self._handler.close()
                else:
                    self._handler.handle(event)
            except BaseException as error:  # noqa: BLE001 - a handler never harms the job
                with self._changed:
                    self._fail(error)
                return
            if event is None:
                self._is_over = True
                return

    def _fail(self, error: BaseException) -> None:
        """Switch the handler off; the lock is held."""
        if not self._is_over:  # who was given up may not speak after the end
            logger.warning(
                "event handler %r failed and is switched off; the job goes on: %s: %s",
                self.name,
                type(error).__name__,
                error,
            )
        self._is_over = True
        self._events.clear()


def close_deliveries(deliveries: Iterable[Delivery], patience: float = LAST_WAIT) -> None:
    """Let all handlers come to their end, at the same time and within `patience` seconds."""
    until = time.monotonic() + patience
    all_of_them = tuple(deliveries)
    for delivery in all_of_them:
        delivery.finish()
    for delivery in all_of_them:
        delivery.wait(until)
