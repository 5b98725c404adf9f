"""Timers, their clients and their servers; names are torchrun's."""

from __future__ import annotations

import abc
import contextlib
import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from plaunch.durations import PATIENCE, PERIOD
from plaunch.errors import TimerError
from plaunch.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("plaunch")


class TimerRequest:
    """A request of a worker to start a timer or, with a negative time, to end it.

    Args:
        worker_id: the id of the worker.
        scope_id: the name of the timer, unique for a worker.
        expiration_time: when it expires, in seconds since the epoch.
    """

    __slots__ = ("expiration_time", "scope_id", "worker_id")

    def __init__(self, worker_id: Any, scope_id: str, expiration_time: float) -> None:
        self.worker_id = worker_id
        self.scope_id = scope_id
        self.expiration_time = expiration_time

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TimerRequest):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._key()!r}"

    def _key(self) -> tuple[Any, ...]:
        return self.worker_id, self.scope_id, self.expiration_time


class TimerClient(abc.ABC):
    """Starts and ends timers of a worker."""

    @abc.abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Start timer `scope_id`, to expire at `expiration_time`, in seconds since the epoch."""

    @abc.abstractmethod
    def release(self, scope_id: str) -> None:
        """End timer `scope_id`; it can no longer expire."""


class RequestQueue(abc.ABC):
    """The queue with the requests of a server's clients."""

    @abc.abstractmethod
    def size(self) -> int:
        """Return the number of available requests; only `get` reduces it."""

    @abc.abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Take up to `size` requests, waiting for them for at most `timeout` seconds."""


class TimerServer(abc.ABC):
    """Watches timers in a thread, and kills workers whose timers have expired.

    Args:
        request_queue: the queue of requests.
        max_interval: how long to wait for a request before checking the timers, in seconds.
        daemon: whether the process may end while the thread runs.

    Raises:
        UsageError: `max_interval` is invalid.
    """

    def __init__(
        self, request_queue: RequestQueue, max_interval: float, daemon: bool = True
    ) -> None:
        PERIOD.check(max_interval, "max_interval")
        self._request_queue = request_queue
        self._max_interval = max_interval
        self._daemon = daemon
        self._watchdog_thread: threading.Thread | None = None
        self._stop_signaled = False

    @abc.abstractmethod
    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Start timers, and end those of requests with a negative time."""

    @abc.abstractmethod
    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Remove all timers of these workers."""

    @abc.abstractmethod
    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """Return the timers that expire at `deadline` or before, by worker."""

    @abc.abstractmethod
    def _reap_worker(self, worker_id: Any) -> bool:
        """Kill a worker; return False to try again."""

    def start(self) -> None:
        """Start the thread."""
        thread = threading.Thread(
            target=self._watchdog_loop, name="plaunch-timer", daemon=self._daemon
        )
        start_thread(thread)
        self._watchdog_thread = thread

    def stop(self) -> None:
        """Stop the thread, and wait for it up to `max_interval` seconds."""
        self._stop_signaled = True
        thread, self._watchdog_thread = self._watchdog_thread, None
        if thread is not None:
            thread.join(self._max_interval)

    def _watchdog_loop(self) -> None:
        while not self._stop_signaled:
            try:
                self._run_watchdog()
            except Exception:
                logger.exception("the timers of workers could not be checked")

    def _run_watchdog(self) -> None:
        size = max(1, self._request_queue.size())
        self.register_timers(self._request_queue.get(size, self._max_interval))
        reaped = set()
        for worker_id, expired in self.get_expired_timers(time.time()).items():
            scopes = ", ".join(request.scope_id for request in expired)
            logger.warning("worker %s is killed: its time for %s has expired", worker_id, scopes)
            if self._reap_worker_no_throw(worker_id):
                reaped.add(worker_id)
        self.clear_timers(reaped)

    def _reap_worker_no_throw(self, worker_id: Any) -> bool:
        try:
            return self._reap_worker(worker_id)
        except Exception:
            logger.exception("worker %s, whose time has expired, could not be killed", worker_id)
            return True


class _ProcessClient:
    client: TimerClient | None = None


def configure(timer_client: TimerClient) -> None:
    """Set the client that `expires` uses in this process."""
    _ProcessClient.client = timer_client


@contextlib.contextmanager
def expires(
    after: float, scope: str | None = None, client: TimerClient | None = None
) -> Iterator[None]:
    """Limit a block of code to `after` seconds; then the server kills the worker.

    Args:
        after: seconds; infinity for no limit.
        scope: the timer's name; by default the file and the line of the `with`.
        client: the client; by default the one given to `configure`.

    Raises:
        TimerError: there is no client.
        UsageError: `after` is not a duration.
    """
    PATIENCE.check(after, "after")
    client = client or _ProcessClient.client
    if client is None:
        raise TimerError(
            "there is no timer client; call plaunch_torchrun.elastic.timer.configure first"
        )
    if scope is None:
        # The caller of contextlib's __enter__, which calls this generator.
        frame = sys._getframe(2)
        scope = f"{frame.f_code.co_filename}#{frame.f_lineno}"
    client.acquire(scope, time.time() + after)
    try:
        yield
    finally:
        client.release(scope)
