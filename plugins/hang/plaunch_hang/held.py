"""Which workers are held, and since when, from look to look."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from plaunch.agent import Held

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class _Hold(NamedTuple):
    """A hold of one worker that lasts.

    Args:
        pid: the worker's process.
        began: when it was seen first, in seconds that never go back.
        held: what it is, and since when.
    """

    pid: int
    began: float
    held: Held


class HeldWatch:
    """The workers of one node that something holds.

    Args:
        wall_clock: seconds since the epoch.
    """

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._holds: dict[int, _Hold] = {}  # by rank
        self._told: set[int] = set()

    def look(self, now: float, pids: Mapping[int, int], held: Mapping[int, str]) -> dict[int, Held]:
        """Take the next look: what holds which worker, by global rank.

        Args:
            now: seconds that never go back.
            pids: the processes of the workers that run.
            held: what holds them.
        """
        before, self._holds = self._holds, {}
        for rank, how in held.items():
            known = before.get(rank)
            if known is None or (known.pid, known.held.how) != (pids[rank], how):
                known = _Hold(pids[rank], now, Held(how, self._wall_clock()))
                self._told.discard(rank)
            self._holds[rank] = known
        self._told &= self._holds.keys()
        return {rank: hold.held for rank, hold in self._holds.items()}

    def take_late(self, now: float, timeouts: Mapping[int, float]) -> dict[int, Held]:
        """Those that have been held for their time-out, and were not taken before.

        Args:
            now: as for `look`.
            timeouts: seconds within which each worker should move.
        """
        late = {
            rank: hold.held
            for rank, hold in self._holds.items()
            if rank not in self._told and now - hold.began >= timeouts[rank]
        }
        self._told |= late.keys()
        return late
