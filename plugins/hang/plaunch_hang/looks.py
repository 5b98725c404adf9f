"""Looks at the workers of a node: what each look sees becomes a `Sight`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch_hang.children import ReadStacks, place_of, read_children, waits_for_children
from plaunch_hang.computing import ComputeWatch
from plaunch_hang.process import read_uses, read_written
from plaunch_hang.stacks import own_stacks, take, waits_for_thread
from plaunch_hang.variables import read_all_variables
from plaunch_hang.watch import Sight

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping

    from plaunch_hang.beats import Beat
    from plaunch_hang.stacks import ProcessStacks

_TRIES = 5  # looks in vain, after which a stack is looked for more rarely
_RARELY = 20  # looks
_SPANS = 4  # in a time-out: of at least so long a span, processor time counts


class Looks:
    """The looks of one launch.

    Args:
        own_stacks: the threads of processes.
        take: all of processes, and of those that they have started.
        read_variables: the variables of processes in short, as far as they can be read.
        computing: finds which processes compute.
    """

    def __init__(
        self,
        own_stacks: ReadStacks = own_stacks,
        take: ReadStacks = take,
        read_variables: Callable[[Collection[int]], Mapping[int, Hashable]] = read_all_variables,
        computing: ComputeWatch | None = None,
    ) -> None:
        self._own_stacks = own_stacks
        self._take = take
        self._read_variables = read_variables
        self._computing = computing or ComputeWatch()
        self._targets: dict[int, int] = {}  # the process with the stack, by that of the worker
        self._failed: dict[int, int] = {}  # looks in vain, by process
        self._unread: dict[int, int] = {}  # the same for variables, in a row
        self._seen: dict[int, ProcessStacks] = {}  # by rank, at this look
        self.reasons: dict[int, str] = {}  # why the stack of a rank is never seen

    def look(
        self,
        pids: Mapping[int, int],
        beats: Mapping[int, Beat],
        timeouts: Mapping[int, float],
        deep: Collection[int] = (),
    ) -> dict[int, Sight]:
        """What is seen of the workers with these processes, by global rank.

        Args:
            pids: the processes.
            beats: their heartbeats.
            timeouts: seconds within which each should move.
            deep: the ranks whose variables and processor time are read as well.
        """
        self._forget(pids)
        places = self._places({r: p for r, p in pids.items() if not beats[r].number})
        targets = {
            r: self._targets[pids[r]]
            for r in deep
            if r in places and places[r] is not None and pids[r] in self._targets
        }
        values = self._read_variables(targets.values()) if targets else {}
        spans = {targets[rank]: timeouts[rank] / _SPANS for rank in targets}
        seen = {pid: self._seen[rank] for rank, pid in targets.items() if self._seen[rank].threads}
        threaded = {pid for pid, one in seen.items() if waits_for_thread(one.threads[0].frames)}
        computing = self._computing.look(spans, threaded)
        waiting = {pid: one for pid, one in seen.items() if waits_for_children(one)}
        children = read_children(waiting, self._own_stacks, self._read_variables)
        sights = {}
        for rank, pid in pids.items():
            place: Hashable = places.get(rank)
            if place is not None:
                place = place, read_written(pid)
            found = None
            if rank in targets:
                found = values.get(targets[rank])
                unread = self._unread[pid] = self._unread.get(pid, 0) + 1 if found is None else 0
                if 0 < unread <= _TRIES:
                    place = None  # it moves while it is looked at, maybe
            sights[rank] = Sight(
                pid,
                place,
                found,
                beats[rank].number,
                timeout=timeouts[rank],
                computes=targets.get(rank) in computing,
                children=children.get(targets.get(rank, -1)),
            )
        return sights

    def _forget(self, pids: Mapping[int, int]) -> None:
        there = set(pids.values())
        for known in (self._targets, self._failed, self._unread):
            for pid in [pid for pid in known if pid not in there]:
                del known[pid]
        for rank in [rank for rank in self.reasons if rank not in pids]:
            del self.reasons[rank]

    def _places(self, pids: Mapping[int, int]) -> dict[int, Hashable]:
        """Where the main threads are, by rank; what the system tells if there is no stack."""
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
            uses = read_uses(lacking.values())
            for rank, pid in lacking.items():
                # A stack that was not seen once tells nothing; the next look may see it.
                if self._failed[pid] >= _TRIES:
                    places[rank] = uses.get(pid)
        return places

    def _note_failure(self, rank: int, pid: int, reason: str) -> None:
        count = self._failed[pid] = self._failed.get(pid, 0) + 1
        self._targets.pop(pid, None)
        if count <= _TRIES or count % _RARELY == 0:
            # A shell, say, that has started one Python.
            main = self._take({rank: pid})[rank]
            below = next((one for one in main.walk() if one.threads), None)
            if below is not None and main.main is not None:
                self._targets[pid] = below.pid
        if count == _TRIES and pid not in self._targets:
            self.reasons[rank] = reason
