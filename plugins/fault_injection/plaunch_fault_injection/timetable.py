"""When faults are due: what a clock, a file and a seed decide, without doing anything."""

from __future__ import annotations

import math
import os
import random
from typing import TYPE_CHECKING, NamedTuple

from plaunch_fault_injection.faults import ANY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch_fault_injection.faults import Fault

LOOK_EVERY = 0.1  # seconds between two looks at a step file


class Round(NamedTuple):
    """A round whose workers run.

    Args:
        number: how many there were before it.
        attempt: how many restarts were used.
        world_size: how many workers there are.
        group_world_size: how many nodes there are.
    """

    number: int
    attempt: int
    world_size: int
    group_world_size: int


class Due(NamedTuple):
    """A fault that is due.

    Args:
        place: that of the fault among all.
        rank: of the worker, or of the node; None for all nodes.
    """

    place: int
    rank: int | None


def look_at_file(path: str) -> object:
    """What changes when a file is written or replaced; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class Timetable:
    """Says which faults are due in the rounds of one launch.

    The same seeds, rounds and moments give the same draws, on every node.

    Args:
        faults: all of them; those with draws have a seed.
        look: tells one state of a file from another.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        look: Callable[[str], object] = look_at_file,
    ) -> None:
        self._faults = faults
        self._look = look
        self._left = [fault.times for fault in faults]
        self._seen: list[object] = [None] * len(faults)  # the states of step files
        self._moments = [0] * len(faults)  # how many there were in this round
        self._due = [math.inf] * len(faults)  # when to look at each of them again
        self._round: Round | None = None

    def look_at_files(self) -> None:
        """Know the step files as they are; what is written from now on counts."""
        self._seen = [f.step_file and self._look(f.step_file) for f in self._faults]

    def begin(self, round_: Round, now: float) -> None:
        """Begin a round whose workers have just started."""
        self._round = round_
        self._moments = [0] * len(self._faults)
        self._due = [
            now + (fault.after if fault.every is None else fault.every)
            if fault.attempt in (None, round_.attempt)
            else math.inf
            for fault in self._faults
        ]

    def end(self) -> None:
        """End the round: nothing is due before the next one."""
        self._round = None

    def next_at(self) -> float:
        """When to `take` next; infinity if not in this round."""
        if self._round is None:
            return math.inf
        return min(at if left else math.inf for at, left in zip(self._due, self._left, strict=True))

    def take(self, now: float) -> list[Due]:
        """The faults that are due now; each moment is told once."""
        if self._round is None:
            return []
        found: list[Due] = []
        for index, fault in enumerate(self._faults):
            if not self._left[index] or now < self._due[index]:
                continue
            if fault.step_file:
                self._due[index] = now + LOOK_EVERY
                before, self._seen[index] = self._seen[index], self._look(fault.step_file)
                if self._seen[index] in (None, before):
                    continue
            elif fault.every is None:
                self._due[index] = math.inf
            else:  # the last one, if the launcher was held up for several
                missed = int((now - self._due[index]) / fault.every)
                self._moments[index] += missed
                self._due[index] += fault.every * (missed + 1)
            self._moments[index] += 1
            found += self._draw(index, self._round)
        return found

    def count(self, index: int) -> None:
        """Know that a fault was injected."""
        self._left[index] -= 1

    def _draw(self, index: int, round_: Round) -> list[Due]:
        fault = self._faults[index]
        if not fault.is_random:
            return [Due(index, fault.rank)]
        # Of all that Python draws, only this is promised to be the same in every version.
        moment = f"{fault.seed}/{index}/{round_.number}/{self._moments[index]}"
        draw = random.Random(moment).random  # noqa: S311 - no secret
        happens, which = draw() < fault.chance, draw()
        size = round_.group_world_size if fault.is_agent else round_.world_size
        rank = int(which * size) if fault.rank == ANY else fault.rank
        return [Due(index, rank)] if happens else []
