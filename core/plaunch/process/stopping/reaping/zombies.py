"""Children of the launcher that have ended, and that nobody else in it will ever wait for."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from plaunch.process.kernel.processes import PROC, Identity, Process
from plaunch.process.stopping.reaping.handles import HANDLE_WAIT, find_handled

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


class Zombies:
    """Reaps what was re-parented to the launcher, and has ended.

    An orphan's exit code is of no use to anybody. A child that a plugin has started is not touched:
    it is in the launcher's session, or was seen to have the launcher's mark, or a `Popen` object
    stands for it. One of which nothing but its end was seen is left for a second.

    Args:
        proc: where the system tells its processes.
        clock: seconds that never go back.
    """

    def __init__(self, proc: str = PROC, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._own: set[Identity] = set()  # what the launcher itself has started
        self._suspects: dict[Identity, float] = {}

    def reap(
        self,
        children: Iterable[Process],
        *,
        is_orphan: Callable[[Process], bool],
        is_launchers: Callable[[Process], bool],
    ) -> int:
        """Reap those of the launcher's children that are orphans, and have ended; say how many.

        Args:
            children: the launcher's children, without workers and the guard.
            is_orphan: whether a child, also one that has ended, is known to be an orphan.
            is_launchers: whether a child that is alive is the launcher's own, or may be.
        """
        session = os.getsid(0)
        own: set[Identity] = set()
        unclear: list[Process] = []
        reaped = 0
        for process in children:
            if process.session == session:
                continue
            pid = process.pid
            identity = process.identity
            if identity in self._own:
                own.add(identity)
            elif process.session != pid or is_orphan(process):
                reaped += not process.is_alive and reap(pid)
            elif not process.is_alive:
                unclear.append(process)
            elif is_launchers(process):
                own.add(identity)
        self._own = own
        return reaped + self._reap_unclear(unclear)

    def _reap_unclear(self, ended: Collection[Process]) -> int:
        """Reap leaders of sessions that were not seen alive, unless somebody holds them."""
        now = self._clock()
        self._suspects = {
            identity: self._suspects.get(identity, now)
            for identity in (process.identity for process in ended)
        }
        due = {pid for (pid, _), since in self._suspects.items() if now - since >= HANDLE_WAIT}
        return sum(map(reap, due - find_handled())) if due else 0


def reap(pid: int) -> bool:
    """Let the system forget a child that has ended; whether it did.

    By its number: waiting for any child would take exit codes away from others.
    """
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None
    return False
