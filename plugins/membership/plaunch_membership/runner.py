"""Runs a routine on a thread of its own, over connections that come and go.

An operation that fails is repeated over a new connection. One that does not come back at all, as
over a cut cable, keeps its thread busy for as long as the system likes: then `renew` gives the
routine to a new thread, and what the old one brings in the end is thrown away. Every operation of
a routine may therefore happen more than once. What the store holds and nobody of this job has
written is the routine's to judge: it gets the error where it asked.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Any

from plaunch.errors import RendezvousConnectionError, RendezvousStateError
from plaunch.threads import start_thread

from plaunch_membership.operations import Add, Operation, Sleep, Wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_membership.operations import Routine
    from plaunch_membership.store import Connect, RendezvousStore

_log = logging.getLogger("plaunch")

_FIRST_PAUSE = 0.05  # seconds before a failed operation is repeated; doubled each time
_LONGEST_PAUSE = 1.0


class Runner:
    """One routine at work; it begins with `start` and ends with `stop` or by itself.

    Args:
        name: what the thread is called.
        routine: what to do.
        connect: opens a connection to the store.
        ended: is called on the thread when the routine has ended by itself, with its error if it
            raised one.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        name: str,
        routine: Routine[Any],
        connect: Connect,
        ended: Callable[[BaseException | None], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.connections = 0
        self.problem: RendezvousConnectionError | None = None  # until the store answers again
        self._routine = routine
        self._connect = connect
        self._ended = ended
        self._clock = clock
        self._nudged = threading.Event()
        self._lock = threading.RLock()  # a routine may stop its own runner
        self._shift = 0  # which thread has the routine
        self._is_stopped = False
        self._operation: Operation | None = None
        self._busy_since: float | None = None
        self._asked_at: float | None = None  # since when the store owes an answer
        self._thread: threading.Thread | None = None
        self._store: RendezvousStore | None = None

    def start(self) -> None:
        """Begin, or begin again with the operation that is pending."""
        thread = threading.Thread(
            target=self._run, args=(self._shift,), name=f"plaunch-{self.name}", daemon=True
        )
        start_thread(thread)
        self._thread = thread

    def nudge(self) -> None:
        """End a `Sleep` of the routine, the present or the next one."""
        self._nudged.set()

    def overdue(self) -> float:
        """Seconds by which the operation in progress is late; at most 0 if it may take longer."""
        since, operation = self._busy_since, self._operation
        if since is None:
            return 0.0
        allowed = operation.timeout if isinstance(operation, Wait) else 0.0
        return self._clock() - since - allowed

    def silent_for(self) -> float:
        """Seconds for which the store owes an answer, however often it was asked; 0 if it does not.

        A store without requests is not silent, and a wait that may take longer is no silence.
        """
        asked_at, operation = self._asked_at, self._operation
        if asked_at is None:
            return 0.0
        allowed = operation.timeout if isinstance(operation, Wait) else 0.0
        return max(0.0, self._clock() - asked_at - allowed)

    def renew(self) -> None:
        """Give the routine to a new thread and a new connection."""
        with self._lock:
            if self._is_stopped or self._busy_since is None:
                return
            self._shift += 1
            self._busy_since = None
            store, self._store = self._store, None
        self.start()
        _close(store)

    def stop(self) -> None:
        """Let nothing more begin; a wait that is under way ends, as its connection is closed.

        A thread that is still inside a C++ library when the interpreter ends would abort it.
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

    def _run(self, shift: int) -> None:
        store: RendezvousStore | None = None
        error: BaseException | None = None
        result: object = None
        is_first = True
        try:
            while True:
                with self._lock:
                    if shift != self._shift or self._is_stopped:
                        return
                    if not is_first or self._operation is None:
                        # Under the lock: a routine is resumed by one thread only.
                        self._operation = self._resume(result)
                    is_first = False
                    operation = self._operation
                if isinstance(operation, Sleep):
                    self._nudged.wait(operation.seconds)
                    self._nudged.clear()
                    result = None
                    continue
                store, result = self._perform(operation, store, shift)
        except StopIteration:
            pass
        except _Relieved:
            return
        except BaseException as raised:  # noqa: BLE001 - whoever waits for the routine gets it
            error = raised
        finally:
            _close(store)
        self._ended(error)

    def _resume(self, result: object) -> Operation:
        if isinstance(result, RendezvousStateError):
            return self._routine.throw(result)
        return self._routine.send(result)

    def _perform(
        self, operation: Any, store: RendezvousStore | None, shift: int
    ) -> tuple[RendezvousStore, object]:
        pause = _FIRST_PAUSE
        while True:
            with self._lock:
                if shift != self._shift or self._is_stopped:
                    _close(store)
                    raise _Relieved
                self._busy_since = self._clock()
                if self._asked_at is None:
                    self._asked_at = self._busy_since
            try:
                if store is None:
                    store = self._connect()
                    self.connections += 1
                self._hold(store, shift)
                if self.problem is not None and isinstance(operation, Add):
                    operation.check(store)
                result = operation.run(store)
            except RendezvousStateError as error:
                if store is None:
                    self._finish(shift)
                    raise
                result = error
            except RendezvousConnectionError as error:
                _close(store)
                store = None
                if not self._finish(shift):
                    raise _Relieved from None
                self.problem = error
                # All nodes have lost the same store; they must not come back in step.
                if self._rest(pause * random.uniform(0.5, 1.0)):  # noqa: S311
                    raise _Relieved from None
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            except BaseException:
                self._finish(shift)
                _close(store)
                raise
            if not self._finish(shift):
                _close(store)
                raise _Relieved
            self.problem = self._asked_at = None
            return store, result

    def _hold(self, store: RendezvousStore, shift: int) -> None:
        """Let `stop` and `renew` close the connection that is about to be used."""
        with self._lock:
            if shift != self._shift or self._is_stopped:
                raise _Relieved
            self._store = store

    def _finish(self, shift: int) -> bool:
        """Note that the operation is over; False if another thread has it by now."""
        with self._lock:
            if shift != self._shift:
                return False
            self._busy_since = None
            return not self._is_stopped

    def _rest(self, seconds: float) -> bool:
        """Pause before another attempt; True if there is to be none."""
        deadline = self._clock() + seconds
        while not self._is_stopped and (left := deadline - self._clock()) > 0:
            time.sleep(min(left, 0.05))
        return self._is_stopped


class _Relieved(Exception):  # noqa: N818 - no error
    """The thread is not needed any more."""


def _close(store: RendezvousStore | None) -> None:
    if store is not None:
        with contextlib.suppress(RendezvousConnectionError):
            store.close()
