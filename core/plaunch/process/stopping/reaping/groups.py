"""The workers' processes where the system tells of none: their groups."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.process.kernel.processes import Process

if TYPE_CHECKING:
    import signal
    from collections.abc import Collection, Iterable


class GroupTree:
    """Knows only the workers' process groups, where the system tells nothing else."""

    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}

    def add_leader(self, rank: int, pid: int, start: int) -> None:
        """Know of a worker, which leads its own group."""
        del start
        self._leaders[rank] = pid

    def look(self) -> dict[int, list[Process]]:
        """One entry, with the leader's number, for each group that has a member."""
        return {
            rank: [Process(pid, pgrp=pid)]
            for rank, pid in self._leaders.items()
            if _has_members(pid)
        }

    left_behind = look

    def is_sure(self) -> bool:
        """Always: there is nothing else to look at."""
        return True

    def signal(self, processes: Iterable[Process], signum: signal.Signals) -> list[Process]:
        """Send a signal to whole groups; returns those that this user may not signal."""
        refused = []
        for process in processes:
            try:
                os.killpg(process.pid, signum)
            except ProcessLookupError:
                pass  # the group is gone, as intended
            except PermissionError:
                refused.append(process)
        return refused

    def newcomers(self) -> dict[int, list[Process]]:
        """Nobody: who is born into a group gets its signals."""
        return {}

    def has_missed(self) -> bool:
        """Never: there is nothing to miss."""
        return False

    def ranks_of(self, processes: Collection[Process]) -> set[int]:
        """The local ranks whose groups these are."""
        pids = {process.pid for process in processes}
        return {rank for rank, pid in self._leaders.items() if pid in pids}


def _has_members(pgrp: int) -> bool:
    try:
        os.killpg(pgrp, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # a member runs as another user, and counts
    return True
