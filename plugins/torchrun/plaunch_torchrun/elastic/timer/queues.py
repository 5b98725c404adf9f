"""Timers over a `multiprocessing` queue, for worker functions; names are torchrun's."""

from __future__ import annotations

import os
import queue
import signal
import time
from typing import TYPE_CHECKING, Any

from plaunch_torchrun.elastic.timer.api import RequestQueue, TimerClient, TimerRequest, TimerServer

if TYPE_CHECKING:
    import multiprocessing


class LocalTimerClient(TimerClient):
    """Sends requests to a `LocalTimerServer` on this host; the worker's id is its process id."""

    def __init__(self, mp_queue: multiprocessing.Queue[TimerRequest]) -> None:
        self._mp_queue = mp_queue

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Start a timer of this process."""
        self._mp_queue.put(TimerRequest(os.getpid(), scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        """End a timer of this process."""
        self._mp_queue.put(TimerRequest(os.getpid(), scope_id, -1))


class MultiprocessingRequestQueue(RequestQueue):
    """Adapts a `multiprocessing` queue for a server."""

    def __init__(self, mp_queue: multiprocessing.Queue[TimerRequest]) -> None:
        self._mp_queue = mp_queue

    def size(self) -> int:
        """Return the number of requests in the queue."""
        return self._mp_queue.qsize()

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Take up to `size` requests, waiting for them for at most `timeout` seconds."""
        requests: list[TimerRequest] = []
        deadline = time.monotonic() + timeout
        while len(requests) < size:
            try:
                requests.append(self._mp_queue.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                break
        return requests


class LocalTimerServer(TimerServer):
    """Kills processes of this host whose timers have expired.

    Args:
        mp_queue: the queue that all clients use.
        max_interval: how long an expired timer may stay unnoticed, in seconds.
        daemon: whether the process may end while the thread runs.
    """

    def __init__(
        self,
        mp_queue: multiprocessing.Queue[TimerRequest],
        max_interval: float = 60,
        daemon: bool = True,
    ) -> None:
        super().__init__(MultiprocessingRequestQueue(mp_queue), max_interval, daemon)
        self._timers: dict[tuple[Any, str], TimerRequest] = {}

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Start timers, and end those of requests with a negative time."""
        for request in timer_requests:
            key = (request.worker_id, request.scope_id)
            if request.expiration_time < 0:
                self._timers.pop(key, None)
            else:
                self._timers[key] = request

    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Remove all timers of these workers."""
        for key in [key for key in self._timers if key[0] in worker_ids]:
            del self._timers[key]

    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """Return the timers that expire at `deadline` or before, by worker."""
        expired: dict[Any, list[TimerRequest]] = {}
        for request in self._timers.values():
            if request.expiration_time <= deadline:
                expired.setdefault(request.worker_id, []).append(request)
        return expired

    def _reap_worker(self, worker_id: int) -> bool:
        try:
            os.kill(worker_id, signal.SIGKILL)
        except ProcessLookupError:
            return True  # it has already ended
        except OSError:
            return False
        return True
