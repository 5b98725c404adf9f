"""Decides from samples whether the workers of a node move.

This module reads no clock and no process (`sampler` does), so that any history can be tested.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from plaunch.process import Held

SAMPLES = 20  # samples within a timeout
LONGEST_PAUSE = 10.0  # seconds between two samples
_LATE = 1.25  # after a longer time than this many pauses, the rest is not counted
_FEWEST = 12  # samples without movement that a hang needs, however long their pauses
_CHANGING = 3  # fields of a `ChildSample` whose changes are movement
ALONE = 4  # a straggler is reported if another moved within this fraction (1/4) of the timeout


class ChildSample(NamedTuple):
    """One sample of a child process that a worker waits for.

    Args:
        place: where its main thread is; None if that is unknown, as for a program that is not
            Python.
        variables: a digest of its variables; None if they were not read.
        use: its resource usage; None if that does not count.
        hold: what holds the worker, in words, because it waits for this process; empty if nothing.
    """

    place: Hashable = None
    variables: Hashable = None
    use: Hashable = None
    hold: str = ""


class WorkerSample(NamedTuple):
    """One sample of a worker.

    Args:
        pid: its process id, which changes after a restart.
        place: where its main thread is, without frames of a wait in a library, and the size of its
            output files; None if unknown.
        variables: a digest of its variables; None if they were not read.
        beats: the number of its heartbeats; 0 if it sends none.
        is_held: whether it cannot move, because it is suspended or in a debugger.
        timeout: its hang timeout in seconds.
        computes: whether it or a child process computes on one line.
        output: bytes of its output through the launcher; those of all workers of the node if they
            are not counted separately.
        children: samples of the child processes that it waits for; None if they were not read.
        hold: what a user holds it with besides the kernel, such as a debugger that runs in it, in
            words; empty if nothing does.
    """

    pid: int
    place: Hashable = None
    variables: Hashable = None
    beats: int = 0
    is_held: bool = False
    timeout: float = math.inf
    computes: bool = False
    output: int = 0
    children: Mapping[int, ChildSample] | None = None
    hold: str = ""


class HangFinding(NamedTuple):
    """The result of one sample.

    Args:
        still: seconds for which no worker has moved, if all have exceeded their timeouts; else 0.
        stragglers: new ranks that have exceeded their timeout while others moved.
        recovered: ranks that were reported as stragglers or as part of a hang, and move again.
    """

    still: float = 0.0
    stragglers: tuple[int, ...] = ()
    recovered: tuple[int, ...] = ()


@dataclass
class _Worker:
    sample: WorkerSample
    idle: float = 0.0  # seconds without movement, as far as that was sampled
    is_reported: bool = False


@dataclass
class HangWatch:
    """Decides from samples whether the workers of one node move.

    Samples are taken at regular intervals. If one is late, because the launcher or the machine was
    suspended, the additional time is not counted. A hang needs at least twelve samples in a row
    without movement, because a few may be equal by chance. While a worker is held, no time is
    counted for any worker, because the others may wait for it.
    """

    _workers: dict[int, _Worker] = field(default_factory=dict)
    _at: float | None = None
    is_reported: bool = False  # whether a hang was reported, and no worker has moved since

    def sample(self, now: float, samples: Mapping[int, WorkerSample], pause: float) -> HangFinding:
        """Add the next sample.

        Args:
            now: monotonic seconds.
            samples: the running workers, by global rank.
            pause: the intended seconds since the last sample.
        """
        passed = 0.0 if self._at is None else min(max(now - self._at, 0.0), pause * _LATE)
        self._at = now
        if {rank: seen.pid for rank, seen in samples.items()} != self._pids():
            self._begin(samples)
            return HangFinding()
        if any(seen.is_held for seen in samples.values()):
            passed = 0.0
        recovered = []
        for rank, seen in samples.items():
            worker = self._workers[rank]
            if has_moved(worker.sample, seen):
                worker.idle = 0.0
                if worker.is_reported:
                    worker.is_reported = False
                    recovered.append(rank)
            elif is_known(worker.sample, seen):
                worker.idle += min(passed, seen.timeout / _FEWEST)
            worker.sample = merged(worker.sample, seen)
        return self._find(tuple(recovered))

    def suspects(self) -> set[int]:
        """Ranks that have not moved for long, of which the next sample should read more."""
        return {
            rank
            for rank, worker in self._workers.items()
            if worker.idle >= worker.sample.timeout / 2
        }

    def idle(self) -> float:
        """Seconds for which none of the workers has moved; 0 if there are none."""
        return min((worker.idle for worker in self._workers.values()), default=0.0)

    def note_reported(self, *, is_hang: bool) -> None:
        """Record that all workers were reported as a hang, or as stragglers of the job."""
        self.is_reported = self.is_reported or is_hang
        for worker in self._workers.values():
            worker.is_reported = True

    def _pids(self) -> dict[int, int]:
        return {rank: worker.sample.pid for rank, worker in self._workers.items()}

    def _begin(self, samples: Mapping[int, WorkerSample]) -> None:
        """Start over, because the processes have changed."""
        self._workers = {rank: _Worker(seen) for rank, seen in samples.items()}
        self.is_reported = False

    def _find(self, recovered: tuple[int, ...]) -> HangFinding:
        late = {rank for rank, worker in self._workers.items() if _is_late(worker)}
        if late and len(late) == len(self._workers):
            return HangFinding(still=self.idle())
        self.is_reported = self.is_reported and not recovered
        stragglers = tuple(sorted(rank for rank in late if self._is_straggler(rank)))
        for rank in stragglers:
            self._workers[rank].is_reported = True
        return HangFinding(stragglers=stragglers, recovered=recovered)

    def _is_straggler(self, rank: int) -> bool:
        worker = self._workers[rank]
        bound = worker.sample.timeout / ALONE
        others = (other for other in self._workers.values() if other is not worker)
        return not worker.is_reported and any(other.idle < bound for other in others)


def pause_for(timeout: float) -> float:
    """Seconds between two samples."""
    return min(timeout / SAMPLES, LONGEST_PAUSE)


def _is_late(worker: _Worker) -> bool:
    return worker.idle >= worker.sample.timeout


def has_moved(before: WorkerSample, now: WorkerSample) -> bool:
    """Whether a worker has moved between two samples, as far as that is known."""
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


def _has_child_moved(before: ChildSample | None, now: ChildSample) -> bool:
    if before is None:
        return True
    pairs = zip(before[:_CHANGING], now[:_CHANGING], strict=True)
    return any(None not in (was, seen) and was != seen for was, seen in pairs)


def is_known(before: WorkerSample, now: WorkerSample) -> bool:
    """Whether two samples without a movement prove that the worker did not move."""
    return bool(now.beats) or (before.place is not None and now.place is not None)


def merged(before: WorkerSample, now: WorkerSample) -> WorkerSample:
    """The sample to compare the next one with: the current one, completed by the previous one."""
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
            children[pid] = _merged_child(before.children.get(pid, ChildSample()), seen)
    variables = before.variables if now.variables is None else now.variables
    return now._replace(variables=variables, children=children)


def _merged_child(before: ChildSample, now: ChildSample) -> ChildSample:
    return now._replace(
        place=before.place if now.place is None else now.place,
        variables=before.variables if now.variables is None else now.variables,
        use=before.use if now.use is None else now.use,
    )


class OverdueHolds:
    """Tracks how long the workers of one node are held."""

    def __init__(self) -> None:
        self._began: dict[Held, float] = {}  # when each hold was first seen
        self._taken: set[Held] = set()

    def take(
        self, now: float, held: Mapping[int, Held], timeouts: Mapping[int, float]
    ) -> dict[int, Held]:
        """Return the workers that have been held for their timeout, each hold once.

        Args:
            now: monotonic seconds.
            held: what holds workers now, by global rank.
            timeouts: the hang timeout of each worker in seconds, by global rank.
        """
        self._began = {hold: self._began.get(hold, now) for hold in held.values()}
        self._taken &= self._began.keys()
        late = {
            rank: hold
            for rank, hold in held.items()
            if hold not in self._taken and now - self._began[hold] >= timeouts[rank]
        }
        self._taken.update(late.values())
        return late
