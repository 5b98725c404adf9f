"""Killing all that belongs to a job, also what is in another process when the signal comes."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from plaunch.process.kernel.processes import Process
    from plaunch.process.stopping.reaping.groups import GroupTree

QUIET = 2  # looks in a row that find nobody new, the second one for numbers that begin anew
_ROUNDS = 64  # looks that find nobody of ours, on a host where others come and go all the time
_MOST = 512  # looks altogether; whoever calls looks at everything then, and at the clock
_PAUSE = 0.005  # seconds between two passes


def kill_all(
    tree: GroupTree, found: Sequence[Process], *, ranks: Collection[int] | None = None
) -> tuple[list[Process], list[Process]]:
    """Kill `found`, and those whom they have become before the signal came.

    A process that forks and ends is somewhere else at once, and a look at all processes takes
    longer than that. So whole groups get the signal, which nobody evades by forking, and then only
    processes are looked at that were not there before, until there are no more.

    Args:
        tree: knows `found`, by a look.
        found: the processes to begin with.
        ranks: the local ranks to which it is restricted; None is everybody.

    Returns:
        All processes that it found, and those that this user may not signal.
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
    """Kills all that is left, when every worker has ended or was given up.

    The stop sequence has ended what it found. This is for processes that came too late for
    it, and for orphans of unknown workers. It ends when a pass finds nothing: an adopter has no
    orphan among its children then, dead or alive, and elsewhere nobody has come since all were
    looked at.

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
        tree: GroupTree,
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
        orphans = [process for found in self._tree.orphans().values() for process in found]
        killed, refused = kill_all(self._tree, self._relevant(orphans))
        has_reaped = self._tend_orphans()
        found = self._relevant(killed)
        if not (found or has_reaped) and self._tree.is_sure():
            return None
        if found and not self._is_told:
            import logging  # a guard does without

            self._is_told = True
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
