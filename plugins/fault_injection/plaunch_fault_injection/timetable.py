"""Decides from the clock, step files and seeds when faults are due."""

from __future__ import annotations

import math
import os
import random
from typing import TYPE_CHECKING, NamedTuple

from plaunch_fault_injection.faults import ANY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch_fault_injection.faults import Fault

CHECK_INTERVAL = 0.1  # seconds between two checks of a step file


class Round(NamedTuple):
    """A round whose workers run.

    Args:
        number: the number of the round.
        attempt: the number of restarts used.
        world_size: the number of workers.
        group_world_size: the number of nodes.
    """

    number: int
    attempt: int
    world_size: int
    group_world_size: int


class Due(NamedTuple):
    """A fault that is due.

    Args:
        position: index of the fault in the list.
        rank: the global rank of the worker, or the group rank of the node; None for all nodes.
    """

    position: int
    rank: int | None


def get_file_state(path: str) -> object:
    """A value that changes when the file is written or replaced; None without a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class Timetable:
    """Decides which faults are due in the rounds of one launch.

    The same seeds, rounds and occasions give the same random choices, on every node.

    Args:
        faults: all faults; those with random choices have a seed.
        get_state: returns the state of a step file.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        get_state: Callable[[str], object] = get_file_state,
    ) -> None:
        self._faults = faults
        self._get_state = get_state
        self._left = [fault.times for fault in faults]
        self._states: list[object] = [None] * len(faults)  # of step files
        self._occasions = [0] * len(faults)  # numbers in this round
        self._due = [math.inf] * len(faults)  # times of the next check
        self._round: Round | None = None

    def record_files(self) -> None:
        """Record the state of all step files; later changes count."""
        self._states = [f.step_file and self._get_state(f.step_file) for f in self._faults]

    def begin(self, round_: Round, now: float) -> None:
        """Begin a round whose workers have just started."""
        self._round = round_
        self._occasions = [0] * len(self._faults)
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
        """The time of the next call of `take`; infinity if there is none in this round."""
        if self._round is None:
            return math.inf
        return min(at if left else math.inf for at, left in zip(self._due, self._left, strict=True))

    def take(self, now: float) -> list[Due]:
        """The faults that are due now; each occasion is returned once."""
        if self._round is None:
            return []
        found: list[Due] = []
        for index, fault in enumerate(self._faults):
            if not self._left[index] or now < self._due[index]:
                continue
            if fault.step_file:
                self._due[index] = now + CHECK_INTERVAL
                before, self._states[index] = self._states[index], self._get_state(fault.step_file)
                if self._states[index] in (None, before):
                    continue
            elif fault.every is None:
                self._due[index] = math.inf
            else:  # if the launcher was suspended for several occasions, only the last counts
                missed = int((now - self._due[index]) / fault.every)
                self._occasions[index] += missed
                self._due[index] += fault.every * (missed + 1)
            self._occasions[index] += 1
            found += self._draw(index, self._round)
        return found

    def count(self, index: int) -> None:
        """Count an injected fault towards its `times`."""
        self._left[index] -= 1

    def _draw(self, index: int, round_: Round) -> list[Due]:
        fault = self._faults[index]
        if not fault.is_random:
            return [Due(index, fault.rank)]
        # Only `random()` is guaranteed to give the same numbers in every version of Python.
        seed = f"{fault.seed}/{index}/{round_.number}/{self._occasions[index]}"
        draw = random.Random(seed).random  # noqa: S311 - no secret
        happens, which = draw() < fault.chance, draw()
        size = round_.group_world_size if fault.is_agent else round_.world_size
        rank = int(which * size) if fault.rank == ANY else fault.rank
        return [Due(index, rank)] if happens else []
