"""Finds and signals the processes of one start of workers, by local rank."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from plaunch.process.marks import ADOPTED
from plaunch.process.proc import (
    Identity,
    Process,
    ancestors_of,
    children_by_parent,
    descend,
    list_numbers,
    read_adopted,
    read_children,
    read_process,
    read_table,
)
from plaunch.process.stopping.evidence import Evidence, Origin, SessionOwners

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    _FindRank = Callable[[Process], int | None]


_QUIET = 2  # passes in a row without a new process; the second one is for ids that wrapped around
# Passes at most, on a host where processes come and go all the time; then the caller reads all of
# them again. This is a number, and not a time, so that a busy machine makes no fewer passes.
_PASSES = 64


class ProcessTree:
    """Finds the processes of one start of workers by session, by parent and by their tag.

    A process that was found once stays known, by id and start time, when its parents are gone. This
    process, its ancestors and the processes that `origin` spares are never found.
    """

    def __init__(self, origin: Origin) -> None:
        self.is_init = origin.is_init  # whether this process inherits unrelated orphans as well
        self._proc = origin.proc
        self.is_adopter = origin.adopter != 0  # whether this process inherits the job's orphans
        self._adopter = origin.adopter
        self._spared = origin.spared
        self._evidence = Evidence(origin)
        self._leaders: dict[int, Identity] = {}
        self._known: dict[Identity, int] = {}
        self._sessions = SessionOwners(origin.clock)
        self._seen: set[int] = set()
        # Whether an adopter had no orphan when all workers had ended, so that none can come.
        self.has_no_orphans = False

    def add_leader(self, rank: int, pid: int, start: int) -> None:
        """Record a worker, which leads its own session."""
        if rank >= 0:
            self._leaders[rank] = (pid, start)
            self._sessions.add(pid, rank)
        self._known[pid, start] = rank

    def scan(self) -> dict[int, list[Process]]:
        """Return the living processes by local rank, workers included."""
        self._evidence.is_unsure = self.has_no_orphans = False
        table = read_table(self._proc)
        self._seen = set(table)
        owners = {
            pid: rank for (pid, start), rank in self._known.items() if _is_in(table, pid, start)
        }
        excluded = {
            os.getpid(),
            *ancestors_of(table, os.getpid()),
            *(pid for pid, start in self._spared if _is_in(table, pid, start)),
        }
        settled = owners.keys() | excluded
        others = [process for pid, process in table.items() if pid not in settled]
        children = children_by_parent(table)
        adopted: list[Process] = []
        if self.is_adopter and not self.is_init:
            adopted = [table[pid] for pid in children.get(self._adopter, ()) if pid not in excluded]

        def claim(processes: Iterable[Process], find_rank: _FindRank) -> None:
            for process in processes:
                rank = None if process.pid in owners else find_rank(process)
                if rank is not None:
                    owners[process.pid] = rank
            descend(owners, children, excluded)

        claim(others, self._evidence.find_rank)
        claim(adopted, lambda process: ADOPTED if self._is_adopted(process) else None)
        self._sessions.update(table, owners)
        claim(others, self._sessions.find_rank)
        # Zombies too: an adopter reaps them.
        self._known = {(pid, table[pid].start): rank for pid, rank in owners.items()}
        found: dict[int, list[Process]] = {}
        for pid, rank in sorted(owners.items()):
            if table[pid].is_alive:
                found.setdefault(rank, []).append(table[pid])
        return found

    def orphans(self, inherited: Iterable[Process] | None = None) -> dict[int, list[Process]]:
        """Return the living processes of workers that have ended.

        An adopter has all orphans as its children. If it has none, no other process is read.

        Args:
            inherited: the last result of `read_inherited`, if there is one.
        """
        if not self.is_adopter or self.find_unknown(
            self.read_inherited() if inherited is None else inherited
        ):
            return self.scan()
        self._evidence.is_unsure, self.has_no_orphans = False, True
        return {}

    def read_inherited(self, *, only_adopted: bool = False) -> list[Process]:
        """Read the adopter's children, dead or alive, except workers; some it has started itself.

        Args:
            only_adopted: leave out those that other threads have started, which costs less.
        """
        children = read_adopted(self._proc) if only_adopted else read_children(self._proc)
        if children is None:
            found: Iterable[Process | None] = read_table(self._proc).values()
        else:
            leaders = {pid for pid, _ in self._leaders.values()}
            found = (read_process(pid, self._proc) for pid in children.difference(leaders))
        return [
            process
            for process in found
            if process is not None
            and process.ppid == self._adopter
            and process.identity not in self._leaders.values()
        ]

    def find_unknown(self, inherited: Iterable[Process]) -> list[Process]:
        """Find those of `read_inherited` that may belong to the job.

        Processes in the launcher's session or with its mark never do.
        """
        return [
            process
            for process in inherited
            if process.identity not in self._spared
            and process.session != os.getsid(0)
            and not self._evidence.has_mark(process)
        ]

    def adopted(self, inherited: Iterable[Process]) -> list[Process]:
        """Return those of `read_inherited` that workers have left, dead or alive."""
        found = [p for p in inherited if p.identity not in self._spared and self._is_adopted(p)]
        for process in found:
            if process.identity not in self._known:
                rank = self._find_rank(process)
                self._known[process.identity] = ADOPTED if rank is None else rank
        return found

    def find_new(self) -> tuple[dict[int, list[Process]], bool]:
        """Find the processes of the job that are new since the last scan or call.

        Much faster than a scan, so the result is less stale. The newest come first: processes that
        fork and exit repeatedly are among them.
        """
        if self.has_no_orphans:
            return {}, False
        has_missed = False
        pids = list_numbers("", self._proc)
        new, self._seen = pids - self._seen, pids
        found: dict[int, list[Process]] = {}
        for pid in sorted(new.difference((os.getpid(),)), reverse=True):
            process = read_process(pid, self._proc)
            if process is None or not process.is_alive:
                has_missed = True
                continue
            if process.identity in self._spared:
                continue
            rank = self._judge(process)
            if rank is not None:
                self._known[process.identity] = rank
                if process.session == pid:
                    self._sessions.add(pid, rank)
                self._sessions.confirm(process)
                found.setdefault(rank, []).append(process)
        return found, has_missed

    def is_launchers(self, process: Process) -> bool:
        """Whether the adopter has, or may have, started a living child of its own."""
        return self._evidence.is_launchers(process)

    def signal(self, processes: Iterable[Process], signum: signal.Signals) -> list[Process]:
        """Send a signal to processes; return those that this user may not signal.

        SIGKILL goes to their groups first: a group gets no new member while it is signalled.
        """
        processes = list(processes)
        if signum == signal.SIGKILL:
            self._kill_groups(processes)
        refused = []
        for process in processes:
            try:
                process.send_signal(signum, self._proc)
            except PermissionError:
                refused.append(process)
        return refused

    def is_sure(self) -> bool:
        """Whether the last scan could judge every process; if not, one a second later can."""
        return not self._evidence.is_unsure

    def is_quiet(self) -> bool:
        """Whether no process of the job has come since the last scan."""
        return not any(any(self.find_new()) for _ in range(_QUIET))

    def kill_all(
        self, found: Sequence[Process], *, ranks: Collection[int] | None = None
    ) -> tuple[list[Process], list[Process]]:
        """Kill `found`, and their forks that the signal has missed.

        A process can fork and exit faster than all processes can be read. So whole groups get the
        signal, which a fork cannot evade. Then only new processes are read, until there are none.

        Args:
            found: the first processes to kill, which the last scan has found.
            ranks: the local ranks to kill; None means all.

        Returns:
            All processes that were found, and those that this user may not signal.
        """
        killed, refused = list(found), self.signal(found, signal.SIGKILL)
        quiet = 0
        for _ in range(_PASSES):
            new_by_rank, has_missed = self.find_new()
            new = [
                process
                for rank, processes in new_by_rank.items()
                if ranks is None or rank in ranks
                for process in processes
            ]
            if new:
                killed += new
                refused += self.signal(new, signal.SIGKILL)
            quiet = 0 if new or has_missed else quiet + 1
            if quiet == _QUIET:
                break
        return killed, refused

    def _kill_groups(self, processes: Iterable[Process]) -> None:
        """Kill the groups in the workers' sessions that still have one of these members.

        The id of a group stays reserved while an adopter has not reaped a member. Elsewhere it may
        become free between check and signal, but the kernel reuses ids only after all others.
        """
        killed = {os.getpgrp()}
        for process in processes:
            if process.pgrp in killed or process.session not in self._sessions:
                continue
            now = read_process(process.pid, self._proc)
            if now is not None and (now.start, now.pgrp) == (process.start, process.pgrp):
                killed.add(process.pgrp)
                # Each member gets the signal itself later, which shows if that is refused.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pgrp, signal.SIGKILL)

    def _judge(self, process: Process) -> int | None:
        """Return the local rank of a process that is new; None if it is not of the job."""
        if process.session in self._sessions:
            leader = read_process(process.session, self._proc)
            if leader is not None and leader.identity not in self._known:
                self._sessions.forget(leader.pid)  # its id was reused
        parent = read_process(process.ppid, self._proc)
        rank = None if parent is None else self._known.get(parent.identity)
        if rank is None:
            rank = self._find_rank(process)
        if rank is None and process.ppid == self._adopter and self._is_adopted(process):
            return ADOPTED
        return rank

    def _find_rank(self, process: Process) -> int | None:
        """Find the local rank of a process by its session or tag; None if not of the job."""
        rank = self._sessions.find_rank(process)
        return self._evidence.find_rank(process) if rank is None else rank

    def _is_adopted(self, process: Process) -> bool:
        """Whether a child of the adopter is an orphan of a worker.

        Children that plugins have started are in the adopter's session, or have the launcher's
        variable in their environment. Their own orphans are recognized in the same way.
        """
        if process.identity in self._known:
            return True
        if process.session == os.getsid(0):
            return False
        if self.is_init:
            # It may be an orphan of a process that came into the container from outside.
            return self._find_rank(process) is not None
        if self._sessions.find_rank(process) is not None:
            return True
        if not process.is_alive:
            # The leader of a session may belong to a plugin, which needs its exit code.
            return process.session != process.pid
        return not self._evidence.is_launchers(process)


def _is_in(table: Mapping[int, Process], pid: int, start: int) -> bool:
    return pid in table and table[pid].start == start
