"""Kills all processes of a job, also those that fork before the signal arrives."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from plaunch.process.kernel.processes import Process
    from plaunch.process.stopping.reaping.groups import GroupTree

QUIET = 2  # passes in a row without a new process; the second one is for ids that wrapped around
_ROUNDS = 64  # passes without a process of the job, on a host where others come and go all the time
_MOST = 512  # passes in total; then the caller reads all processes, and the clock
_PAUSE = 0.005  # seconds between two passes


def kill_all(
    tree: GroupTree, found: Sequence[Process], *, ranks: Collection[int] | None = None
) -> tuple[list[Process], list[Process]]:
    """Kill `found`, and their forks that the signal has missed.

    A process can fork and exit faster than all processes can be read. So whole groups get the
    signal, which a fork cannot evade. Then only new processes are read, until there are no more.

    Args:
        tree: the tree whose last look has found `found`.
        found: the first processes to kill.
        ranks: the local ranks to kill; None means all.

    Returns:
        All processes that were found, and those that this user may not signal.
    """
    killed, refused = list(found), tree.signal(found, signal.SIGKILL)
    quiet = rounds = looks = 0
    while quiet < QUIET and rounds < _ROUNDS and looks < _MOST:
        looks += 1
        new = [
            process
            for rank, processes in tree.newcomers().items()
            if ranks is None or rank in ranks
            for process in processes
        ]
        if new:
            killed += new
            refused += tree.signal(new, signal.SIGKILL)
            quiet = rounds = 0
        elif tree.has_missed:
            quiet, rounds = 0, rounds + 1
        else:
            quiet += 1
    return killed, refused


class Sweep:
    """Kills all that is left when every worker has ended or was given up.

    The stop sequence has ended the processes that it found. This is for those that came later, and
    for orphans of unknown workers. It ends when a pass finds nothing: then an adopter has no orphan
    among its children, dead or alive, and elsewhere no process has come since all were read.

    Args:
        tree: finds them.
        tend_orphans: reaps orphans that have ended; whether there were some.
        given_up: the ids of processes that have survived SIGKILL.
        patience: seconds to wait for processes to end after SIGKILL.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        tree: GroupTree,
        tend_orphans: Callable[[], bool],
        given_up: Collection[int],
        patience: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.left: list[Process] = []  # the processes that survive
        self._tree = tree
        self._tend_orphans = tend_orphans
        self._given_up = given_up
        self._clock = clock
        self._deadline = clock() + patience
        self._has_logged = False

    def step(self) -> float | None:
        """Kill what is found; return the seconds until the next step, or None at the end."""
        orphans = [process for found in self._tree.orphans().values() for process in found]
        killed, refused = kill_all(self._tree, self._relevant(orphans))
        has_reaped = self._tend_orphans()
        found = self._relevant(killed)
        if not (found or has_reaped) and self._tree.is_sure():
            return None
        if found and not self._has_logged:
            import logging  # not in the guard

            self._has_logged = True
            logging.getLogger("plaunch").info(
                "ending orphans: pids %s", [process.pid for process in found]
            )
        is_refused = bool(found) and len(refused) == len(found)
        if is_refused or self._clock() > self._deadline:
            self.left = found
            return None
        return _PAUSE

    def _relevant(self, processes: list[Process]) -> list[Process]:
        return [process for process in processes if process.pid not in self._given_up]
