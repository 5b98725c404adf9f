"""What belongs to one start of workers: the processes of each local rank, wherever they went."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Protocol

from plaunch.process.reaping import marker
from plaunch.process.reaping.marker import ADOPTED
from plaunch.process.reaping.table import (
    PROC,
    Process,
    has_table,
    read_children,
    read_process,
    read_table,
    send,
)

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection, Iterable, Mapping

_BLANK = 0.2  # seconds; who becomes another program has no environment for much less than that
_KERNEL_THREADS = 2  # the number of the parent of all of them

_Identity = tuple[int, int]  # number and start


class Tree(Protocol):
    """Finds the processes of one start of workers."""

    def add_leader(self, rank: int, pid: int, start: int) -> None:
        """Know of a worker, which leads its own session."""

    def look(self) -> dict[int, list[Process]]:
        """The living processes by local rank, workers included."""

    def left_behind(self) -> dict[int, list[Process]]:
        """The same, for workers that have ended; may be cheaper."""

    def signal(self, processes: Iterable[Process], signum: signal.Signals) -> list[Process]:
        """Send a signal to what `look` has found; returns those that this user may not signal."""

    def is_sure(self) -> bool:
        """Whether the last look could tell of every process whether it belongs to the job."""


def make_tree(
    job: str,
    *,
    proc: str = PROC,
    since: int = 0,
    has_forked: bool = False,
    adopter: int = 0,
    spared: Collection[int] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Tree:
    """The best `Tree` that the system allows.

    Args:
        job: the name in the words of `PLAUNCH_JOBS`.
        proc: where the system tells its processes.
        since: the start of the launcher in clock ticks; nothing older can be a worker's.
        has_forked: whether workers may be forked, and then show their words in their title.
        adopter: the launcher, if it is plaunch's own process and inherits orphans; else 0.
        spared: numbers of processes that never belong to the workers; it may grow later.
        clock: seconds that never go back.
    """
    if not has_table(proc):
        return GroupTree()
    return ProcTree(
        job,
        proc=proc,
        since=since,
        has_forked=has_forked,
        adopter=adopter,
        spared=spared,
        clock=clock,
    )


class ProcTree:
    """Finds processes in /proc: by session, by parent, by the word in their environment.

    What was found once stays known, by number and start time, when its parents have gone. Never
    found are this process, its ancestors, and what `spared` names.
    """

    def __init__(
        self,
        job: str,
        *,
        proc: str = PROC,
        since: int = 0,
        has_forked: bool = False,
        adopter: int = 0,
        spared: Collection[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job.encode()
        self._proc = proc
        self._has_forked = has_forked
        self._adopter = adopter
        self._spared = spared
        self._leaders: dict[int, _Identity] = {}
        self._known: dict[_Identity, int] = {}
        self._sessions: dict[int, int] = {}
        self._clock = clock
        self._has_blanks = False
        self._blank_since: dict[_Identity, float] = {}
        self._since = since  # most processes are older, and need no second look

    def add_leader(self, rank: int, pid: int, start: int) -> None:
        """Know of a worker, which leads its own session."""
        if rank >= 0:
            self._leaders[rank] = (pid, start)
        self._known[pid, start] = rank

    def look(self) -> dict[int, list[Process]]:
        """The living processes by local rank, workers included."""
        self._has_blanks = False
        table = read_table(self._proc)
        excluded = {os.getpid(), *self._spared, *_ancestors(table, os.getpid())}
        owners = {
            pid: rank
            for (pid, start), rank in self._known.items()
            if pid in table and table[pid].start == start
        }
        others = [
            process
            for process in table.values()
            if process.pid not in owners and process.pid not in excluded
        ]
        children = _children(table)
        self._claim(others, self._find_mark, owners)
        _descend(owners, children, excluded)
        if self._adopter:
            for pid in children.get(self._adopter, ()):
                if pid not in owners and pid not in excluded and self._is_adopted(table[pid]):
                    owners[pid] = ADOPTED
            _descend(owners, children, excluded)
        self._find_sessions(table, owners)
        self._claim(others, self._find_session, owners)
        _descend(owners, children, excluded)
        return self._remember(table, owners)

    def left_behind(self) -> dict[int, list[Process]]:
        """What is alive of workers that have ended.

        An adopter has all orphans as its children, so that it need not look any further if it has
        none.
        """
        if self._adopter and not self.unknown_children():
            self._has_blanks = False
            return {}
        return self.look()

    def unknown_children(self) -> set[int]:
        """The adopter's children that are neither workers nor spared, dead or alive.

        All that are alive and were not noticed before, if the kernel does not list children.
        """
        children = read_children(self._proc)
        if children is None:
            table = read_table(self._proc)
            children = {p.pid for p in table.values() if p.ppid == self._adopter}
        return children.difference(self._spared, (pid for pid, _ in self._leaders.values()))

    def orphans(self) -> list[Process]:
        """The adopter's children that came from workers, also those that have ended."""
        if not self._adopter:
            return []
        found = []
        for pid in self.unknown_children():
            process = read_process(pid, self._proc)
            if process is not None and process.ppid == self._adopter and self._is_adopted(process):
                found.append(process)
                if (pid, process.start) not in self._known:
                    rank = self._find_session(process)
                    if rank is None:
                        rank = self._find_mark(process)
                    self._known[pid, process.start] = ADOPTED if rank is None else rank
        return found

    def signal(self, processes: Iterable[Process], signum: signal.Signals) -> list[Process]:
        """Send a signal to what `look` has found; returns those that this user may not signal."""
        refused = []
        for process in processes:
            try:
                send(process, signum, self._proc)
            except PermissionError:
                refused.append(process)
        return refused

    def is_sure(self) -> bool:
        """Whether the last look could tell of every process whether it belongs to the job.

        If not, one that comes a fifth of a second later can.
        """
        return not self._has_blanks

    def _find_sessions(self, table: Mapping[int, Process], owners: Mapping[int, int]) -> None:
        """Note the sessions that belong to workers; forget those whose number went to a stranger.

        The number of a session stays taken as long as it has a member.
        """
        for rank, (pid, _) in self._leaders.items():
            self._sessions.setdefault(pid, rank)
        for pid, rank in owners.items():
            if table[pid].session == pid:
                self._sessions[pid] = rank
        for session in list(self._sessions):
            if session in table and session not in owners:
                del self._sessions[session]

    @staticmethod
    def _claim(
        processes: Iterable[Process],
        find_rank: Callable[[Process], int | None],
        owners: dict[int, int],
    ) -> None:
        """Give processes that have no owner to the one that `find_rank` says."""
        for process in processes:
            if process.pid not in owners:
                rank = find_rank(process)
                if rank is not None:
                    owners[process.pid] = rank

    def _find_session(self, process: Process) -> int | None:
        """The local rank of a process by its session, or by the group of the worker itself."""
        return self._sessions.get(process.session, self._sessions.get(process.pgrp))

    def _find_mark(self, process: Process) -> int | None:
        """The local rank of a process by its word."""
        if not process.is_alive or process.start < self._since:
            return None
        environ = marker.read_environ(process.pid, self._proc)
        if (
            not environ
            and process.ppid != _KERNEL_THREADS
            and marker.read_user(process.pid, self._proc) == os.getuid()
        ):
            self._note_blank(process)
        rank = marker.find_rank(environ, self._job)
        if rank is None and self._has_forked:
            title = marker.read_title(process.pid, self._proc)
            rank = marker.find_rank_in_title(title, self._job)
        if rank is not None and marker.read_user(process.pid, self._proc) != os.getuid():
            return None
        return rank

    def _is_adopted(self, process: Process) -> bool:
        """Whether a child of the adopter came from a worker.

        The adopter's own children, of plugins for instance, are in its session, which no worker is,
        or have a session of their own and the launcher's variable in their environment.
        """
        if (process.pid, process.start) in self._known:
            return True
        if process.session == os.getsid(0):
            return False
        if process.session != process.pid:
            return True
        # One that has ended might as well be a plugin's, which wants its exit code.
        return process.is_alive and not self._is_launchers(process)

    def _is_launchers(self, process: Process) -> bool:
        """Whether the launcher itself has started a process that leads a session, or may have."""
        environ = marker.read_environ(process.pid, self._proc)
        if not environ:
            return not self._note_blank(process)
        if marker.is_started_by_launcher(environ, self._adopter):
            return True
        # Or a fork of the launcher, which is still to become another program.
        return not self._has_forked and environ == marker.read_environ(self._adopter, self._proc)

    def _note_blank(self, process: Process) -> bool:
        """Whether a process has indeed no environment.

        It may also be in the middle of becoming another program, and would be taken for a stranger:
        the last look is not sure of it then.
        """
        now = self._clock()
        since = self._blank_since.setdefault((process.pid, process.start), now)
        is_blank = now - since >= _BLANK
        self._has_blanks |= not is_blank
        return is_blank

    def _remember(
        self, table: Mapping[int, Process], owners: Mapping[int, int]
    ) -> dict[int, list[Process]]:
        # Zombies too: those of an adopter are its own to reap.
        self._known = {(pid, table[pid].start): rank for pid, rank in owners.items()}
        found: dict[int, list[Process]] = {}
        for pid, rank in sorted(owners.items()):
            if table[pid].is_alive:
                found.setdefault(rank, []).append(table[pid])
        return found


class GroupTree:
    """Knows only the workers' process groups, where the system tells nothing else."""

    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}

    def add_leader(self, rank: int, pid: int, start: int) -> None:
        """Know of a worker, which leads its own group."""
        del start
        self._leaders[rank] = pid

    def look(self) -> dict[int, list[Process]]:
        """One entry, with the leader's number, for each group that has a member."""
        return {
            rank: [Process(pid, pgrp=pid)]
            for rank, pid in self._leaders.items()
            if _has_members(pid)
        }

    left_behind = look

    def is_sure(self) -> bool:
        """Always: there is nothing else to look at."""
        return True

    def signal(self, processes: Iterable[Process], signum: signal.Signals) -> list[Process]:
        """Send a signal to whole groups; returns those that this user may not signal."""
        refused = []
        for process in processes:
            try:
                os.killpg(process.pid, signum)
            except ProcessLookupError:
                pass  # the group is gone, as intended
            except PermissionError:
                refused.append(process)
        return refused


def _has_members(pgrp: int) -> bool:
    try:
        os.killpg(pgrp, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # a member runs as another user, and counts
    return True


def _ancestors(table: Mapping[int, Process], pid: int) -> set[int]:
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].ppid
    return found


def _children(table: Mapping[int, Process]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process.pid)
    return children


def _descend(
    owners: dict[int, int], children: Mapping[int, list[int]], excluded: Collection[int]
) -> None:
    """Give the descendants of what is owned to the same owners."""
    open_ends = list(owners)
    while open_ends:
        pid = open_ends.pop()
        for child in children.get(pid, ()):
            if child not in owners and child not in excluded:
                owners[child] = owners[pid]
                open_ends.append(child)
