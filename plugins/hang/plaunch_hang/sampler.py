"""Sampling the workers of a node, and the child processes that they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from plaunch_hang.process import ComputeWatch, ProcessFacts
from plaunch_hang.stacks import (
    count_waiting,
    describe_child_hold,
    find_hold,
    own_stacks,
    read_all_variables,
    runs_program,
    take,
    waits_for_children,
    waits_for_thread,
)
from plaunch_hang.watch import ChildSample, WorkerSample

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

    from plaunch_hang.heartbeats import HeartbeatState
    from plaunch_hang.stacks import ProcessStacks, StackFrame

_TRIES = 5  # failed samples, after which reading a stack is tried less often
_RARELY = 20  # samples
_SPANS = 4  # spans of CPU time in a timeout


class WorkerSampler:
    """Samples the workers of one launch.

    Args:
        own_stacks: reads the stacks of processes.
        take: reads the stacks of processes and their descendants.
        read_variables: reads digests of the variables of processes.
        computing: finds out which processes compute.
        facts: reads further facts about workers, and finds their descendants.
    """

    def __init__(
        self,
        own_stacks: ReadStacks = own_stacks,
        take: ReadStacks = take,
        read_variables: Callable[[Collection[int]], Mapping[int, Hashable]] = read_all_variables,
        computing: ComputeWatch | None = None,
        facts: ProcessFacts | None = None,
    ) -> None:
        self._own_stacks = own_stacks
        self._take = take
        self._read_variables = read_variables
        self._computing = computing or ComputeWatch()
        self._facts = facts or ProcessFacts()
        self._targets: dict[int, int] = {}  # the process that has the stack, by worker process
        self._failed: dict[int, int] = {}  # failed reads of stacks, by process
        self._unread: dict[int, int] = {}  # consecutive failed reads of variables, by process
        self._holds: dict[int, str] = {}  # what held processes when their stacks were read last
        self._seen: dict[int, ProcessStacks] = {}  # the stacks of this sample, by rank
        self.reasons: dict[int, str] = {}  # why the stack of a rank cannot be read

    def sample(
        self,
        pids: Mapping[int, int],
        beats: Mapping[int, HeartbeatState],
        timeouts: Mapping[int, float],
        deep: Collection[int] = (),
    ) -> dict[int, WorkerSample]:
        """Sample the workers; return the samples by global rank.

        Args:
            pids: the process ids, by global rank.
            beats: their heartbeats.
            timeouts: the hang timeout of each in seconds.
            deep: the ranks whose variables and CPU time are read too, and with heartbeats the
                stack.
        """
        self._forget(pids)
        places = self._places({r: p for r, p in pids.items() if not beats[r].number or r in deep})
        suspects = {r: self._targets.get(pids[r], pids[r]) for r in deep if r in places}
        targets = {
            r: pid
            for r, pid in suspects.items()
            if places[r] is not None and pids[r] in self._targets and not beats[r].number
        }
        values = self._read_variables(targets.values()) if targets else {}
        below = self._facts.find_parents(suspects.values()) if suspects else {}
        computing = self._find_computing(suspects, timeouts, below)
        seen = {pid: self._seen[rank] for rank, pid in suspects.items()}
        waiting = {pid: one for pid, one in seen.items() if waits_for_children(one)}
        children = read_children(
            waiting, self._own_stacks, self._read_variables, below, self._facts.read_use
        )
        samples = {}
        for rank, pid in pids.items():
            place: Hashable = places.get(rank) if not beats[rank].number else None
            if place is not None:
                place = place, self._facts.read_written(pid)
            found = None
            if rank in targets:
                found = values.get(targets[rank])
                unread = self._unread[pid] = self._unread.get(pid, 0) + 1 if found is None else 0
                if 0 < unread <= _TRIES:
                    place = None  # it may have moved while it was read
            own = children.get(suspects.get(rank, -1))
            samples[rank] = WorkerSample(
                pid,
                place,
                found,
                beats[rank].number,
                timeout=timeouts[rank],
                computes=suspects.get(rank) in computing,
                children=own,
                hold=self._find_hold(rank, pid, own or {}, is_still=rank in deep),
            )
        return samples

    def _find_computing(
        self,
        suspects: Mapping[int, int],
        timeouts: Mapping[int, float],
        below: Mapping[int, Mapping[int, int]],
    ) -> set[int]:
        """The suspected processes that compute; without a stack, all of their threads count."""
        spans, threaded = {}, set()
        for rank, pid in suspects.items():
            spans[pid] = timeouts[rank] / _SPANS
            threads = self._seen[rank].threads
            if not threads or waits_for_thread(threads[0].frames):
                threaded.add(pid)
        return self._computing.sample(spans, threaded, below)

    def _find_hold(
        self, rank: int, pid: int, children: Mapping[int, ChildSample], *, is_still: bool
    ) -> str:
        """What holds a worker besides the kernel; the last result if its stack cannot be read."""
        seen = self._seen.get(rank)
        if seen is None:
            return ""
        how = find_hold(seen, is_still=is_still)
        if not how and not seen.threads and 0 < self._failed.get(pid, 0) < _TRIES:
            how = self._holds.get(pid, "")
        self._holds[pid] = how
        return how or next((one.hold for one in children.values() if one.hold), "")

    def _forget(self, pids: Mapping[int, int]) -> None:
        there = set(pids.values())
        for known in (self._targets, self._failed, self._unread, self._holds):
            for pid in [pid for pid in known if pid not in there]:
                del known[pid]
        for rank in [rank for rank in self.reasons if rank not in pids]:
            del self.reasons[rank]

    def _places(self, pids: Mapping[int, int]) -> dict[int, Hashable]:
        """The places of the main threads, by rank; without a stack, what the kernel reports."""
        places: dict[int, Hashable] = {}
        self._seen = self._own_stacks({r: self._targets.get(p, p) for r, p in pids.items()})
        for rank, stacks in self._seen.items():
            pid = pids[rank]
            if stacks.threads:
                self._targets.setdefault(pid, stacks.pid)
                self._failed.pop(pid, None)
                self.reasons.pop(rank, None)
                places[rank] = place_of(stacks.threads[0].frames)
            else:
                self._note_failure(rank, pid, stacks.reason)
        lacking = {rank: pid for rank, pid in pids.items() if pid in self._failed}
        if lacking:
            uses = self._facts.read_uses(lacking.values())
            for rank, pid in lacking.items():
                # After a single failed read, wait for the next sample.
                if self._failed[pid] >= _TRIES:
                    places[rank] = uses.get(pid)
        return places

    def _note_failure(self, rank: int, pid: int, reason: str) -> None:
        count = self._failed[pid] = self._failed.get(pid, 0) + 1
        self._targets.pop(pid, None)
        if count <= _TRIES or count % _RARELY == 0:
            # It may be a shell that has started Python.
            main = self._take({rank: pid})[rank]
            below = next((one for one in main.walk() if one.threads), None)
            if below is not None and main.main is not None:
                self._targets[pid] = below.pid
        if count == _TRIES and pid not in self._targets:
            self.reasons[rank] = reason


class ReadStacks(Protocol):
    """`plaunch_hang.stacks.own_stacks` or `take`."""

    def __call__(self, pids: Mapping[int, int], /) -> dict[int, ProcessStacks]:
        """Read the stacks of processes, by rank."""


def place_of(frames: Sequence[StackFrame]) -> tuple[bool, tuple[StackFrame, ...]]:
    """Whether a thread waits in a library, and its frames without those of the wait."""
    waiting = count_waiting(frames)
    return waiting > 0, tuple(frames[waiting:])


def read_children(
    waiting: Mapping[int, ProcessStacks],
    own_stacks: ReadStacks,
    read_variables: Callable[[Collection[int]], Mapping[int, Hashable]],
    below: Mapping[int, Mapping[int, int]],
    read_use: Callable[[int], Hashable],
) -> dict[int, dict[int, ChildSample]]:
    """Sample all descendants of processes that wait for them.

    Of a program that is not Python, its resource usage counts, but only if the Python process above
    it waits for a program. Otherwise it may be a monitor that also runs while a job hangs.

    Args:
        waiting: the stacks of the waiting processes, by pid.
        own_stacks: reads the stacks of processes.
        read_variables: reads digests of the variables of processes.
        below: the parents of all descendants of processes, parents before children.
        read_use: reads the resource usage of a process.

    Returns:
        The samples of the descendants of each process. Processes that cannot be read are left out.
    """
    every = {pid: pid for worker in waiting for pid in below.get(worker, ())}
    found = own_stacks(every) if every else {}
    seen = {pid: one for pid, one in found.items() if one.threads}
    values = read_variables(seen) if seen else {}
    samples: dict[int, dict[int, ChildSample]] = {}
    for pid, stacks in waiting.items():
        samples[pid] = {}
        runs = {pid: runs_program(stacks)}
        for child, parent in below.get(pid, {}).items():
            hold = describe_child_hold(found[child], is_still=True) if child in found else ""
            if child in seen:
                runs[child] = runs_program(seen[child])
                place = place_of(seen[child].threads[0].frames)
                samples[pid][child] = ChildSample(place, values.get(child), hold=hold)
                continue
            runs[child] = runs[parent]
            use = read_use(child) if runs[child] else None
            if use is not None:
                samples[pid][child] = ChildSample(use=use, hold=hold)
    return samples
