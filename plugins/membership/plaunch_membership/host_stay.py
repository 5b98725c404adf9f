"""How long the host of the store stays for the nodes that need it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch_membership.state import JobPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from plaunch_membership.membership import Membership
    from plaunch_membership.store_threads import StoreThreads

_log = logging.getLogger("plaunch")

FAREWELL = 5.0  # seconds for the last operations, a limit to the configured timeouts


class HostStay:
    """Decides whether a host stays after its own part in the job is over.

    Args:
        membership: this node's membership.
        threads: the threads that reach the store.
        has_guests: whether other processes are connected to the store.
        check_interval: seconds between two checks whether it is still needed.
    """

    def __init__(
        self,
        membership: Membership,
        threads: StoreThreads,
        has_guests: Callable[[], bool],
        check_interval: float,
    ) -> None:
        self._membership = membership
        self._threads = threads
        self._has_guests = has_guests
        self._check_interval = check_interval

    def is_needed(self) -> bool:
        """Whether this node only stays in the job because it hosts the store."""
        membership = self._membership
        is_done = membership.part.has_succeeded or membership.is_excluded
        return is_done and membership.is_host and membership.news.verdict is None

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Host the store until the other nodes have finished, since they would stop without it.

        It returns when the job ends, when the store fails, when `is_over` returns True, or when no
        round has run for `join_timeout`.
        """
        membership = self._membership
        _log.warning(
            "this node %s and hosts the store of job %r; it stays until the others have finished",
            "is excluded" if membership.is_excluded else "has finished",
            membership.identity.run_id,
        )
        deadline = membership.clock() + membership.timing.join_timeout
        while True:
            self._threads.supervise()
            with membership.lock:
                if (
                    is_over()
                    or membership.news.verdict is not None
                    or membership.news.error is not None
                    or self._threads.problem() is not None
                    or membership.clock() >= deadline
                ):
                    return
                state = membership.state
                if state is not None and state.phase is JobPhase.RUNNING:
                    deadline = membership.clock() + membership.timing.join_timeout
                membership.lock.wait(self._check_interval)

    def must_linger(self, seconds: float, waiting: Collection[str]) -> bool:
        """Whether to keep the store for nodes that do not know the verdict after so many seconds.

        A node that does not read it within some seconds has died or is suspended; only its
        connection shows which.
        """
        membership = self._membership
        if seconds >= membership.timing.close_timeout:
            return False
        is_soon = seconds < FAREWELL and not membership.peers.lost.keys() >= set(waiting)
        return is_soon or self._has_guests()
