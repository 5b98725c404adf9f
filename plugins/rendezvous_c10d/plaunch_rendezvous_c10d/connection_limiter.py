"""Keeps descriptors free for the launcher when many clients connect to the store that it hosts.

torch's server accepts connections until the process has no descriptors left. Then the launcher
could not open a file or start a worker, and the job would end on all nodes. So the soft limit is
raised to the hard one, and if descriptors are still short, the latest connections are closed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import select
import threading
import time
from typing import TYPE_CHECKING

from plaunch.durations import milliseconds
from plaunch.process import list_numbers, raise_descriptor_limit

from plaunch_rendezvous_c10d.guests import find_guests, hang_up_guest, open_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("plaunch")

_MIN_INTERVAL = 0.002  # seconds between two checks, which bounds their cost
_SPARE = 4  # reserved descriptors, for closing connections when there are no others
_MAX_RESERVE = 128  # descriptors that the store never gets
_WARN_INTERVAL = 60.0  # seconds


class ConnectionLimiter:
    """Watches the number of descriptors of this process on a thread, until `close`.

    Args:
        port: the port of the store.
        listener_fd: a descriptor of its listening socket, which is readable when a client connects.
        expected: the number of connections that the job may need.
        limit: returns the limit of descriptors of this process.
        raise_limit: raises that limit as far as the system allows, and returns it.
        clock: a monotonic clock, in seconds.
        check_interval: seconds between two checks without new connections.
        scan_interval: seconds between two scans of the connections.
    """

    def __init__(
        self,
        port: int,
        listener_fd: int,
        expected: int = 0,
        *,
        limit: Callable[[], int] = lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        raise_limit: Callable[[], int] = raise_descriptor_limit,
        clock: Callable[[], float] = time.monotonic,
        check_interval: float = 1.0,
        scan_interval: float = 0.25,
    ) -> None:
        self._port = port
        self._limit = limit
        self._raise_limit = raise_limit
        self._clock = clock
        self._check_interval = check_interval
        self._scan_interval = scan_interval
        self._known: set[int] = set()  # inodes of the connections at the last scan
        self._scanned_at = clock()
        self._warn_at = clock()
        self._spare = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_SPARE)]
        # The descriptors that are open now are needed; at most half of the others are reserved.
        self._used = len(list_numbers("self/fd"))
        needed = self._used + expected
        if needed > raise_limit():
            _log.warning(
                "this node hosts the store of the job and may have %d descriptors (ulimit -Hn), "
                "but so many nodes may need %d: nodes that come too late will be rejected",
                limit(),
                needed,
            )
        self._end, self._ended = os.pipe2(os.O_CLOEXEC)
        self._listener_fd = listener_fd
        self._thread = threading.Thread(target=self._run, name="plaunch-limiter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        os.close(self._ended)
        self._thread.join()
        os.close(self._end)
        self._release_spare()

    def mark(self) -> int:
        """The number of descriptors that may be open, including the store's connections."""
        limit = self._limit()
        return limit - min(_MAX_RESERVE, max(limit - self._used, 0) // 2)

    def check(self) -> int:
        """Close the newest connections if too few descriptors are left.

        Returns:
            The number of closed connections.
        """
        if self._lowest_free() < self.mark():
            if self._clock() >= self._scanned_at + self._scan_interval:
                self._scanned_at = self._clock()
                self._known = set(find_guests(self._port))
            return 0
        # Few or no descriptors are left.
        self._release_spare()
        try:
            return self._close_newest()
        finally:
            self._reserve_spare()

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._end, select.POLLIN)
        poller.register(self._listener_fd, select.POLLIN)
        while self._end not in dict(poller.poll(milliseconds(self._check_interval))):
            with contextlib.suppress(OSError):
                self.check()
            time.sleep(_MIN_INTERVAL)

    def _lowest_free(self) -> int:
        """Return the number that the next descriptor gets; all lower ones are in use."""
        try:
            free = os.dup(self._spare[0]) if self._spare else os.open(os.devnull, os.O_RDONLY)
        except OSError:
            return self._limit()
        os.close(free)
        return free

    def _close_newest(self) -> int:
        self._raise_limit()  # it may have been lowered
        excess = len(list(open_descriptors())) + _SPARE - self.mark()
        here = find_guests(self._port)
        newcomers = sorted(((inode, fd) for inode, fd in here.items() if inode not in self._known))
        ended = 0
        for inode, fd in reversed(newcomers):
            if ended >= excess:
                break
            if hang_up_guest(fd, inode):
                ended += 1
                del here[inode]
        self._known = set(here)
        if ended and self._clock() >= self._warn_at:
            self._warn_at = self._clock() + _WARN_INTERVAL
            _log.warning(
                "this node hosts the store of the job and has nearly all of the %d descriptors "
                "open that it may have (ulimit -Hn): new nodes are rejected, so that the others "
                "can continue. Raise the limit",
                self._limit(),
            )
        return ended

    def _release_spare(self) -> None:
        while self._spare:
            os.close(self._spare.pop())

    def _reserve_spare(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._spare) < _SPARE:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
