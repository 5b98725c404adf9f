"""Whether the workers of a node move: decided from what is seen of them, without a clock.

Nothing here looks at anything; `looks` does. So any history of looks can be tested.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

LOOKS = 20  # within a time-out
LONGEST_PAUSE = 10.0  # seconds between two looks
_LATE = 1.25  # times the pause between two looks; of a longer time, no more counts
_FEWEST = 12  # looks within a time-out, however long the pauses between them are
ALONE = 4  # a straggler is told while another has moved within this part of the time-out


class ChildSight(NamedTuple):
    """A process that a worker has started and waits for, at one look.

    Args:
        place: where its main thread is; None if that could not be seen, as of a program that is not
            Python.
        variables: as those of a worker; None if they were not read.
        use: what it has used, as the kernel tells it; None if that does not count.
    """

    place: Hashable = None
    variables: Hashable = None
    use: Hashable = None


class Sight(NamedTuple):
    """One worker at one look.

    Args:
        pid: its process, which is another one after a restart.
        place: where its main thread is outside of a wait in a library, and what it wrote; None if
            that could not be seen.
        variables: those of its functions and its main module, in short; None if they were not read.
        beats: how many heartbeats there were; 0 if it has none.
        is_held: whether it cannot move: it is suspended, or a debugger has it.
        timeout: seconds within which it should move.
        computes: whether it computes on one line, or processes that it started do.
        output: bytes that it has written through the launcher; those of all workers of the node if
            they are not counted for each.
        children: the processes that it has started and waits for, as far as they were seen; None if
            they were not looked for.
    """

    pid: int
    place: Hashable = None
    variables: Hashable = None
    beats: int = 0
    is_held: bool = False
    timeout: float = math.inf
    computes: bool = False
    output: int = 0
    children: Mapping[int, ChildSight] | None = None


class Finding(NamedTuple):
    """What one look has come to.

    Args:
        still: for how many seconds no worker has moved, if that is too long; else 0.
        stragglers: the ranks that have not moved for too long, while others have; new ones only.
        recovered: the ranks that were told as stragglers, or as part of a hang, and move again.
    """

    still: float = 0.0
    stragglers: tuple[int, ...] = ()
    recovered: tuple[int, ...] = ()


@dataclass
class _Worker:
    sight: Sight
    idle: float = 0.0  # seconds in which it was seen not to move
    is_told: bool = False


@dataclass
class HangWatch:
    """The workers of one node, from look to look.

    Time counts while it is seen that nothing moves: looks come at regular times, and when one comes
    late, because the launcher or the whole machine did not run, the rest of that time is left out.
    So a hang is never found in fewer than twelve looks in a row: a few may see the same by chance.
    While a worker is held, no time counts for anybody: the others may wait for it.
    """

    _workers: dict[int, _Worker] = field(default_factory=dict)
    _at: float | None = None
    is_told: bool = False  # whether a hang was told, out of which no worker has moved

    def look(self, now: float, sights: Mapping[int, Sight], pause: float) -> Finding:
        """Take the next look.

        Args:
            now: seconds that never go back.
            sights: the workers that run, by global rank.
            pause: seconds since the last look, if it has come in time.
        """
        passed = 0.0 if self._at is None else min(max(now - self._at, 0.0), pause * _LATE)
        self._at = now
        if {rank: seen.pid for rank, seen in sights.items()} != self._pids():
            self._begin(sights)
            return Finding()
        if any(seen.is_held for seen in sights.values()):
            passed = 0.0
        recovered = []
        for rank, seen in sights.items():
            worker = self._workers[rank]
            if has_moved(worker.sight, seen):
                worker.idle = 0.0
                if worker.is_told:
                    worker.is_told = False
                    recovered.append(rank)
            elif is_known(worker.sight, seen):
                worker.idle += min(passed, seen.timeout / _FEWEST)
            worker.sight = merged(worker.sight, seen)
        return self._find(tuple(recovered))

    def suspects(self) -> set[int]:
        """The ranks of which more should be seen at the next look: they have not moved for long."""
        return {
            rank
            for rank, worker in self._workers.items()
            if not worker.sight.beats and worker.idle >= worker.sight.timeout / 2
        }

    def idle(self) -> float:
        """Seconds for which none of the workers has moved; 0 if there are none."""
        return min((worker.idle for worker in self._workers.values()), default=0.0)

    def note_told(self, *, is_hang: bool) -> None:
        """Have it known that all workers were told as a hang, or as stragglers of a job."""
        self.is_told = self.is_told or is_hang
        for worker in self._workers.values():
            worker.is_told = True

    def _pids(self) -> dict[int, int]:
        return {rank: worker.sight.pid for rank, worker in self._workers.items()}

    def _begin(self, sights: Mapping[int, Sight]) -> None:
        """Others run than before; that is a movement of the whole job."""
        self._workers = {rank: _Worker(seen) for rank, seen in sights.items()}
        self.is_told = False

    def _find(self, recovered: tuple[int, ...]) -> Finding:
        late = {rank for rank, worker in self._workers.items() if _is_late(worker)}
        if late and len(late) == len(self._workers):
            return Finding(still=self.idle())
        self.is_told = self.is_told and not recovered
        stragglers = tuple(sorted(rank for rank in late if self._is_straggler(rank)))
        for rank in stragglers:
            self._workers[rank].is_told = True
        return Finding(stragglers=stragglers, recovered=recovered)

    def _is_straggler(self, rank: int) -> bool:
        worker = self._workers[rank]
        bound = worker.sight.timeout / ALONE
        others = (other for other in self._workers.values() if other is not worker)
        return not worker.is_told and any(other.idle < bound for other in others)


def pause_for(timeout: float) -> float:
    """Seconds between two looks."""
    return min(timeout / LOOKS, LONGEST_PAUSE)


def _is_late(worker: _Worker) -> bool:
    return worker.idle >= worker.sight.timeout


def has_moved(before: Sight, now: Sight) -> bool:
    """Whether a worker has moved between two looks, as far as that was seen."""
    if before.beats or now.beats:
        return before.beats != now.beats
    if now.computes or before.output != now.output:
        return True
    if before.place is None or now.place is None:
        return False
    if before.place != now.place:
        return True
    if before.children is not None and now.children is not None:
        was = before.children
        if any(_has_child_moved(was.get(pid), seen) for pid, seen in now.children.items()):
            return True
    has_variables = before.variables is not None and now.variables is not None
    return has_variables and before.variables != now.variables


def _has_child_moved(before: ChildSight | None, now: ChildSight) -> bool:
    if before is None:
        return True
    pairs = zip(before, now, strict=True)
    return any(None not in (was, seen) and was != seen for was, seen in pairs)


def is_known(before: Sight, now: Sight) -> bool:
    """Whether it was seen that a worker has not moved, unless it has."""
    return bool(now.beats) or (before.place is not None and now.place is not None)


def merged(before: Sight, now: Sight) -> Sight:
    """What the next look is compared with: what was not seen now may have been seen before."""
    if now.place is None:
        return now._replace(
            place=before.place, variables=before.variables, children=before.children
        )
    if now.place != before.place:
        return now
    children = now.children
    if before.children is not None:
        children = {**before.children}
        for pid, seen in (now.children or {}).items():
            children[pid] = _merged_child(before.children.get(pid, ChildSight()), seen)
    variables = before.variables if now.variables is None else now.variables
    return now._replace(variables=variables, children=children)


def _merged_child(before: ChildSight, now: ChildSight) -> ChildSight:
    pairs = zip(before, now, strict=True)
    return ChildSight(*(was if seen is None else seen for was, seen in pairs))
