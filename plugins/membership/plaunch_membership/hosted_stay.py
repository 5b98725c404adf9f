"""How long a node that hosts the job's store stays for the nodes that need it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch_membership.state import JobPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from plaunch_membership.membership import Membership
    from plaunch_membership.store_threads import StoreThreads

_log = logging.getLogger("plaunch")

FAREWELL = 5.0  # seconds for the last operations, however long the options allow
_GLANCE = 1.0  # seconds between two looks at what may be wrong


class HostedStay:
    """Decides whether a host stays, when its own part in the job is over.

    Args:
        membership: this node's.
        threads: reach the store.
        has_guests: whether other processes are connected to the store.
    """

    def __init__(
        self, membership: Membership, threads: StoreThreads, has_guests: Callable[[], bool]
    ) -> None:
        self._membership = membership
        self._threads = threads
        self._has_guests = has_guests

    def is_all(self) -> bool:
        """Whether all that this node still does for the job is to host its store."""
        ours = self._membership
        is_done = ours.part.has_succeeded or ours.is_excluded
        return is_done and ours.identity.is_host and ours.news.verdict is None

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Keep the store for those whose workers are not done, although this node's part is over.

        Without it they would have to stop. It ends with the job, when the store fails, when
        `is_over`, or when the others have not been able to continue for as long as nodes may take
        to arrive.
        """
        ours = self._membership
        _log.warning(
            "this node %s and hosts the store of job %r; it stays until the others have finished",
            "is excluded" if ours.is_excluded else "has finished",
            ours.identity.run_id,
        )
        is_running_until = ours.clock() + ours.timing.join_timeout
        while True:
            self._threads.supervise()
            with ours.lock:
                if (
                    is_over()
                    or ours.news.verdict is not None
                    or ours.news.error is not None
                    or self._threads.problem() is not None
                    or ours.clock() >= is_running_until
                ):
                    return
                state = ours.state
                if state is not None and state.phase is JobPhase.RUNNING:
                    is_running_until = ours.clock() + ours.timing.join_timeout
                ours.lock.wait(_GLANCE)

    def goes_on(self, seconds: float, waiting: Collection[str]) -> bool:
        """Whether to keep the store for nodes that do not know the verdict after so many seconds.

        One that does not come for some seconds has died, or is paused, which only its connection
        tells.
        """
        ours = self._membership
        if seconds >= ours.timing.close_timeout:
            return False
        is_soon = seconds < FAREWELL and not ours.peers.lost.keys() >= set(waiting)
        return is_soon or self._has_guests()
