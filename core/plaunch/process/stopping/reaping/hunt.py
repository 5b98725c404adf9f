"""Killing processes that are not there any more when the signal comes, but in another number."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from plaunch.process.kernel.processes import Process
    from plaunch.process.stopping.reaping.tree import Tree

QUIET = 2  # looks in a row that find nobody new, the second one for numbers that begin anew
_ROUNDS = 64  # looks that find nobody of ours, on a host where others come and go all the time
_MOST = 512  # looks altogether; whoever calls looks at everything then, and at the clock


class HuntResult:
    """Whom a hunt has come upon: all of them, and those that this user may not signal."""

    def __init__(self, found: list[Process], refused: list[Process]) -> None:
        self.found = found
        self.refused = refused


def hunt(
    tree: Tree, found: Sequence[Process], *, ranks: Collection[int] | None = None
) -> HuntResult:
    """Kill `found`, and those whom they have become before the signal came.

    A process that forks and ends is somewhere else at once, and a look at all processes takes
    longer than that. So whole groups get the signal, which nobody evades by forking, and then only
    processes are looked at that were not there before, until there are no more.

    Args:
        tree: knows `found`, by a look.
        found: the processes to begin with.
        ranks: the local ranks to whom the hunt is restricted; None is everybody.
    """
    result = HuntResult(list(found), tree.signal(found, signal.SIGKILL))
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
            result.found.extend(new)
            result.refused.extend(tree.signal(new, signal.SIGKILL))
            quiet = rounds = 0
        elif tree.has_missed():
            quiet, rounds = 0, rounds + 1
        else:
            quiet += 1
    return result
