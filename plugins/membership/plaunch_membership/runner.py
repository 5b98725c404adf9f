"""Runs a routine on its own thread, and reconnects to the store when necessary.

An operation that fails is repeated over a new connection. An operation that does not return, as
after a cut cable, may block its thread for as long as the system allows. `renew` then hands the
routine to a new thread, and the result of the old one is discarded. Every operation of a routine
may therefore take effect more than once. If the store holds an invalid value, the error is raised
inside the routine.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING, Any

from plaunch.errors import RendezvousConnectionError, RendezvousStateError
from plaunch.threads import start_thread

from plaunch_membership.operations import Counting, Operation, Sleep, Wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_membership.operations import Routine
    from plaunch_membership.outage import OutageReporter
    from plaunch_membership.store import Connect, RendezvousStore


FIRST_PAUSE = 0.05  # seconds before a failed operation is repeated; doubled each time
_LONGEST_PAUSE = 1.0


class Runner:
    """Runs one routine, from `start` until `stop` or its own end.

    Args:
        name: the name of the thread.
        routine: the routine to run.
        connect: opens a connection to the store.
        ended: called on the thread when the routine has ended by itself, with the error that it
            raised, if any.
        outage: is notified of each failed operation, and of each answer.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        name: str,
        routine: Routine[Any],
        connect: Connect,
        ended: Callable[[BaseException | None], None],
        *,
        outage: OutageReporter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.problem: RendezvousConnectionError | None = None  # until the store answers again
        self._routine = routine
        self._connect = connect
        self._ended = ended
        self._outage = outage
        self._clock = clock
        self._nudged = threading.Event()
        self._lock = threading.RLock()  # a routine may stop its own runner
        self._is_stopped = False
        self._operation: Operation | None = None
        self._busy_since: float | None = None
        self._asked_at: float | None = None  # since when the store has not answered
        self._thread: threading.Thread | None = None  # the one that runs the routine
        self._store: RendezvousStore | None = None

    def start(self) -> None:
        """Start a thread; it continues with the pending operation, if any."""
        thread = threading.Thread(target=self._run, name=f"plaunch-{self.name}", daemon=True)
        with self._lock:
            start_thread(thread)
            self._thread = thread

    def nudge(self) -> None:
        """End the current `Sleep` of the routine, or the next one."""
        self._nudged.set()

    def overdue(self) -> float:
        """Seconds by which the current operation is late; at most 0 if it may still take longer."""
        since, operation = self._busy_since, self._operation
        if since is None:
            return 0.0
        allowed = operation.timeout if isinstance(operation, Wait) else 0.0
        return self._clock() - since - allowed

    def silent_for(self) -> float:
        """Seconds without an answer of the store, over all retries; 0 if none is due.

        The time that a `Wait` may take does not count.
        """
        asked_at, operation = self._asked_at, self._operation
        if asked_at is None:
            return 0.0
        allowed = operation.timeout if isinstance(operation, Wait) else 0.0
        return max(0.0, self._clock() - asked_at - allowed)

    def renew(self) -> None:
        """Hand the routine to a new thread and a new connection."""
        with self._lock:
            if self._is_stopped or self._busy_since is None:
                return
            self.start()
            self._busy_since = None
            store, self._store = self._store, None
        _close(store)

    def stop(self) -> None:
        """Start no further operation, and close the connection, which ends a wait in progress.

        A thread that is still inside a C++ library when the interpreter exits would abort it.
        """
        with self._lock:
            self._is_stopped = True
            store, self._store = self._store, None
        self._nudged.set()
        _close(store)

    def join(self, timeout: float) -> bool:
        """Wait for the thread; False if it has not ended after `timeout` seconds."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    # --- on the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        store: RendezvousStore | None = None
        error: BaseException | None = None
        result: object = None
        is_first = True
        try:
            while True:
                with self._lock:
                    if self._is_replaced() or self._is_stopped:
                        return
                    if not is_first or self._operation is None:
                        # Under the lock: only one thread may resume a routine.
                        self._operation = self._resume(result)
                    is_first = False
                    operation = self._operation
                if isinstance(operation, Sleep):
                    self._nudged.wait(operation.seconds)
                    self._nudged.clear()
                    result = None
                    continue
                store, result = self._perform(operation, store)
        except StopIteration:
            pass
        except _ReplacedError:
            return
        except BaseException as raised:  # noqa: BLE001 - passed to `ended`
            error = raised
        finally:
            _close(store)
        self._ended(error)

    def _resume(self, result: object) -> Operation:
        if isinstance(result, RendezvousStateError):
            return self._routine.throw(result)
        return self._routine.send(result)

    def _perform(
        self, operation: Any, store: RendezvousStore | None
    ) -> tuple[RendezvousStore, object]:
        pause = FIRST_PAUSE
        while True:
            with self._lock:
                if self._is_replaced() or self._is_stopped:
                    _close(store)
                    raise _ReplacedError
                self._busy_since = self._clock()
                if self._asked_at is None:
                    self._asked_at = self._busy_since
            try:
                if store is None:
                    store = self._connect()
                self._hold(store)
                if self.problem is not None and isinstance(operation, Counting):
                    operation.check(store)
                result = operation.run(store)
            except RendezvousStateError as error:
                if store is None:
                    self._finish()
                    raise
                result = error
            except RendezvousConnectionError as error:
                _close(store)
                store = None
                if not self._finish():
                    raise _ReplacedError from None
                self.problem = error
                self._outage.failed(error)
                # All nodes have lost the same store; they must not reconnect in step.
                if self._pause(pause * random.uniform(0.5, 1.0)):  # noqa: S311
                    raise _ReplacedError from None
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            except BaseException:
                self._finish()
                _close(store)
                raise
            if not self._finish():
                _close(store)
                raise _ReplacedError
            self.problem = self._asked_at = None
            self._outage.recovered()
            return store, result

    def _hold(self, store: RendezvousStore) -> None:
        """Make the connection known to `stop` and `renew` before it is used."""
        with self._lock:
            if self._is_replaced() or self._is_stopped:
                raise _ReplacedError
            self._store = store

    def _is_replaced(self) -> bool:
        """Whether `renew` has handed the routine to another thread."""
        return threading.current_thread() is not self._thread

    def _finish(self) -> bool:
        """Mark the operation as finished; False if the thread was replaced or stopped."""
        with self._lock:
            if self._is_replaced():
                return False
            self._busy_since = None
            return not self._is_stopped

    def _pause(self, seconds: float) -> bool:
        """Sleep before a retry; True if the runner was stopped."""
        deadline = self._clock() + seconds
        while not self._is_stopped and (left := deadline - self._clock()) > 0:
            time.sleep(min(left, 0.05))
        return self._is_stopped


class _ReplacedError(Exception):
    """Another thread has the routine, or the runner was stopped."""


def _close(store: RendezvousStore | None) -> None:
    if store is not None:
        with contextlib.suppress(RendezvousConnectionError):
            store.close()
