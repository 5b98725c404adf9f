"""Finds the processes of workers by their process groups, where there is no /proc."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from plaunch.process.kernel.processes import Process

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable


class GroupTree:
    """Finds the processes of one start of workers; this class, by the groups that workers lead."""

    is_init = False  # whether this process inherits unrelated orphans as well
    has_missed = False  # whether a process ended before the last `newcomers` could judge it

    def __init__(self) -> None:
        self._groups: dict[int, int] = {}

    def add_leader(self, rank: int, pid: int, start: int) -> None:
        """Record a worker, which leads its own session and group."""
        del start
        self._groups[rank] = pid

    def look(self) -> dict[int, list[Process]]:
        """The living processes by local rank, workers included; here, one for each group."""
        return {
            rank: [Process(pid, pgrp=pid)] for rank, pid in self._groups.items() if _is_there(pid)
        }

    def orphans(self) -> dict[int, list[Process]]:
        """The living processes of workers that have ended; may be cheaper than `look`."""
        return self.look()

    def is_sure(self) -> bool:
        """Whether the last look could judge every process; if not, one a second later can."""
        return True

    def _send(self, process: Process, signum: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # the group is gone, as intended
            os.killpg(process.pid, signum)

    def signal(self, processes: Iterable[Process], signum: signal.Signals) -> list[Process]:
        """Send a signal to processes; returns those that this user may not signal."""
        refused = []
        for process in processes:
            try:
                self._send(process, signum)
            except PermissionError:
                refused.append(process)
        return refused

    def newcomers(self) -> dict[int, list[Process]]:
        """The processes of the job that are new since the last look or call, by local rank.

        None in groups: a new process of a group gets the signals of the group.
        """
        return {}


def _is_there(pgrp: int) -> bool:
    try:
        os.killpg(pgrp, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # a member runs as another user, and counts
    return True
