"""The last look at what workers have left, in passes that never wait."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from plaunch.process.stopping.reaping.hunt import hunt

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from plaunch.process.kernel.processes import Process
    from plaunch.process.stopping.reaping.tree import Tree

_log = logging.getLogger("plaunch")

_PAUSE = 0.005  # seconds between two passes


class Sweep:
    """Kills all that is left, when every worker has ended or was given up.

    The stop ladder has ended what it found. This is for what came too late for it, and for orphans
    of whom nobody knows the worker. It ends when a pass finds nothing: an adopter has no orphan
    among its children then, dead or alive, and elsewhere nobody has come since all were looked at.

    Args:
        tree: finds them.
        tend_orphans: lets the system forget orphans that have ended, and says whether there were
            some.
        given_up: numbers of processes that have outlived SIGKILL already.
        patience: seconds to wait for processes to end after SIGKILL.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        tree: Tree,
        tend_orphans: Callable[[], bool],
        given_up: Collection[int],
        patience: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.left: list[Process] = []  # what outlives it
        self._tree = tree
        self._tend_orphans = tend_orphans
        self._given_up = given_up
        self._clock = clock
        self._deadline = clock() + patience
        self._is_told = False

    def step(self) -> float | None:
        """Take a pass; the seconds until the next one, or None if there is none."""
        result = hunt(self._tree, self._relevant(self._all_left()))
        has_reaped = self._tend_orphans()
        found = self._relevant(result.found)
        if not (found or has_reaped) and self._tree.is_sure():
            return None
        if found and not self._is_told:
            self._is_told = True
            _log.info("ending what was left behind: pids %s", [p.pid for p in found])
        is_refused = bool(found) and len(result.refused) == len(found)
        if is_refused or self._clock() > self._deadline:
            self.left = found
            return None
        return _PAUSE

    def _all_left(self) -> list[Process]:
        return [process for found in self._tree.left_behind().values() for process in found]

    def _relevant(self, processes: list[Process]) -> list[Process]:
        return [process for process in processes if process.pid not in self._given_up]
