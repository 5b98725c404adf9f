"""Keeps some of this process's descriptors for itself when many connect to the store in it.

torch's server takes every connection that comes, until there are no descriptors left. Then the
launcher could open no file, and start no worker: the job would end, for all nodes. So the soft
limit is raised to the hard one, and when descriptors run short all the same, the latest connections
are ended.
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

_GLANCE = 1.0  # seconds between two looks at how many there are, if nobody comes
_REST = 0.002  # seconds after each look, so that a crowd does not keep this process busy
_KNOWN_EVERY = 0.25  # seconds between two looks at who is there
_SPARE = 4  # descriptors that are held, for what is done when there are no others
_MOST_KEPT = 128  # descriptors that nobody else gets, if there are many
_SAID_EVERY = 60.0  # seconds


class Doorkeeper:
    """Watches the descriptors of this process on a thread, until `close`.

    Args:
        port: where the store is served.
        bell: a descriptor of the socket that listens there, which is readable when a client comes.
        expected: how many connections the job may need.
        limit: how many descriptors this process may have.
        raise_limit: raises that to what the system allows, and returns it.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        port: int,
        bell: int,
        expected: int = 0,
        *,
        limit: Callable[[], int] = lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        raise_limit: Callable[[], int] = raise_descriptor_limit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._port = port
        self._limit = limit
        self._raise_limit = raise_limit
        self._clock = clock
        self._known: set[int] = set()  # connections that were there at the last look
        self._looked_at = clock()
        self._say_at = clock()
        self._spare = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_SPARE)]
        # What is open by now is needed; of what is left, half may be others'.
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
        self._bell = bell
        self._thread = threading.Thread(target=self._run, name="plaunch-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        os.close(self._ended)
        self._thread.join()
        os.close(self._end)
        self._let_go()

    def mark(self) -> int:
        """The number of descriptors that may be open, with the store's connections."""
        limit = self._limit()
        return limit - min(_MOST_KEPT, max(limit - self._used, 0) // 2)

    def look(self) -> int:
        """End connections that have just come, if there are too few descriptors left.

        Returns:
            How many were ended.
        """
        if self._lowest_free() < self.mark():
            if self._clock() >= self._looked_at + _KNOWN_EVERY:
                self._looked_at = self._clock()
                self._known = set(find_guests(self._port))
            return 0
        # Not much is left, or nothing at all.
        self._let_go()
        try:
            return self._make_room()
        finally:
            self._take_spare()

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._end, select.POLLIN)
        poller.register(self._bell, select.POLLIN)
        while self._end not in dict(poller.poll(milliseconds(_GLANCE))):
            with contextlib.suppress(OSError):
                self.look()
            time.sleep(_REST)

    def _lowest_free(self) -> int:
        """The number that the next descriptor gets: below it, all are taken."""
        try:
            free = os.dup(self._spare[0]) if self._spare else os.open(os.devnull, os.O_RDONLY)
        except OSError:
            return self._limit()
        os.close(free)
        return free

    def _make_room(self) -> int:
        self._raise_limit()  # somebody may have lowered it
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
        if ended and self._clock() >= self._say_at:
            self._say_at = self._clock() + _SAID_EVERY
            _log.warning(
                "this node hosts the store of the job and has nearly all of the %d descriptors "
                "open that it may have (ulimit -Hn): new nodes are rejected, so that the others "
                "can go on. Raise the limit",
                self._limit(),
            )
        return ended

    def _let_go(self) -> None:
        while self._spare:
            os.close(self._spare.pop())

    def _take_spare(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._spare) < _SPARE:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
