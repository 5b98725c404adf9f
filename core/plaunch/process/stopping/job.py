"""The processes of one start of workers: finds them, signals them, reports them to the guard."""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import TYPE_CHECKING

from plaunch.process.job_tag import ADOPTED, JOBS_VARIABLE, job_line, make_tags, process_line
from plaunch.process.processes import find_identity
from plaunch.process.stopping.evidence import ZombieReaper, reap
from plaunch.process.stopping.tree import ProcTree, make_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from plaunch.process.processes import Identity, Process
    from plaunch.process.stopping.evidence import Origin
    from plaunch.process.stopping.guard import Guard
    from plaunch.process.stopping.tree import GroupTree

_log = logging.getLogger("plaunch")

_PAUSE = 0.005  # seconds between two passes


class Job:
    """One start of workers: a job tag, and the processes with it.

    `look` and `orphans` return the same processes until `refresh`.

    Args:
        origin: how its processes are recognized.
        spared: the processes that `origin` spares; helpers and guards are added.
        folder: a temporary folder for the guard to remove if the launcher is killed.
        zombies: reaps the children of an adopter.
    """

    def __init__(
        self, origin: Origin, spared: set[Identity], *, folder: str | None, zombies: ZombieReaper
    ) -> None:
        self._name = origin.job.decode()
        self._proc = origin.proc
        self._tree = tree = make_tree(origin)
        # The same tree, if this process inherits the orphans of the job.
        self._adopter = tree if isinstance(tree, ProcTree) and tree.is_adopter else None
        self._zombies = zombies
        self._spared = spared
        # What a guard must know: the job and its processes, except orphans that have ended.
        self._lines: dict[Identity | None, bytes] = {
            None: job_line(
                self._name, since=origin.since, has_forked=origin.has_forked, folder=folder
            )
        }
        self._guard: Guard | None = None
        self._looked: dict[int, list[Process]] | None = None
        self._orphans: dict[int, list[Process]] | None = None
        self._killed: set[int] = set()  # local ranks with processes that got SIGKILL

    def tags(self, rank: int | str) -> str:
        """The value of `PLAUNCH_JOBS` in the environment of a worker, or of a helper."""
        return make_tags(self._name, rank, os.environ.get(JOBS_VARIABLE))

    def guard_fd(self) -> int | None:
        """The pipe to which a worker reports itself to the guard; None without a guard.

        It is close-on-exec, and belongs to the guard.
        """
        return self._guard.line_fd if self._guard is not None and self._guard.is_alive() else None

    def own_fds(self) -> list[int]:
        """All descriptors that a forked worker must close."""
        return [] if self._guard is None else self._guard.own_fds()

    def set_guard(self, guard: Guard | None) -> None:
        """Send everything that is known to a guard, which may be a new one."""
        self._guard = guard
        if guard is not None:
            self._spared.add(find_identity(guard.pid, self._proc))
            for line in self._lines.values():
                guard.send(line)

    def started(self, rank: int, pid: int) -> None:
        """Record a worker; call it as soon as the worker has a process id."""
        identity = find_identity(pid, self._proc)
        self._tree.add_leader(rank, *identity)
        self._tell_guard(rank, identity)

    def add_helper(self, pid: int) -> None:
        """Record a helper process of the launcher; call it as soon as it has a process id."""
        identity = find_identity(pid, self._proc)
        self._spared.add(identity)
        self._tell_guard(ADOPTED, identity)

    def inherits_orphans(self) -> bool:
        """Whether this process inherits all orphans of the job, and no others.

        It then finds them without having seen their parents.
        """
        return self._adopter is not None and not self._adopter.is_init

    def refresh(self) -> None:
        """Discard what `look` and `orphans` have found."""
        self._looked = self._orphans = None

    def look_at_all(self) -> None:
        """Find all processes while their parents run, by which their owners are known."""
        self._looked = self._tree.look()

    def look(self, rank: int) -> list[Process]:
        """All living processes of one local rank, the worker included."""
        if self._looked is None:
            self._looked = self._tree.look()
        return self._looked.get(rank, [])

    def orphans(self, rank: int) -> list[Process]:
        """The living orphans of a worker that has ended and was reaped."""
        if self._orphans is None:
            self._orphans = self._find_orphans()
        return self._orphans.get(rank, [])

    def is_clear(self) -> bool:
        """Whether there are no orphans, and none can have appeared since the last `orphans`.

        Only once all workers have ended. An adopter has inherited every orphan by then; elsewhere,
        new process ids are checked, as in the last pass of a sweep.
        """
        if self._orphans is None or self._orphans or not self._tree.is_sure():
            return False
        if self._adopter is not None:
            return self._adopter.has_no_orphans
        return self._tree.is_quiet()

    def signal(
        self, rank: int, processes: Collection[Process], signum: signal.Signals
    ) -> list[Process]:
        """Send a signal to processes of a local rank; returns those that this user may not signal.

        Call `finish_kill` after SIGKILL has been sent to all ranks.
        """
        if processes and signum == signal.SIGKILL:
            self._killed.add(rank)
        return self._tree.signal(processes, signum)

    def finish_kill(self) -> None:
        """Kill the forks of processes that got SIGKILL since the last call.

        This reads all processes, so the workers of all ranks get their SIGKILL first.
        """
        if self._killed:
            ranks, self._killed = self._killed, set()
            self._tree.kill_all([], ranks=ranks)
            self.refresh()

    def begin_sweep(self, given_up: Collection[int], patience: float) -> Sweep:
        """Begin to kill what is left, once every worker has ended or was given up.

        Args:
            given_up: the ids of processes that have survived SIGKILL.
            patience: seconds to wait for processes to end after SIGKILL.
        """
        return Sweep(self._tree, self.tend_orphans, given_up, patience)

    def tend(self) -> None:
        """Reap and record orphans while workers run; about once a second is enough.

        The first process of a container inherits orphans of other programs too, so it must find the
        job's processes before they are orphans.
        """
        if self._tree.is_init:
            self._tree.look()
        self.tend_orphans()

    def tend_orphans(self) -> bool:
        """Reap orphans that have ended, and report the others to the guard.

        Does nothing in a process that does not inherit orphans.

        Returns:
            Whether some had ended.
        """
        tree = self._adopter
        return tree is not None and self._tend(tree, tree.read_inherited())

    def _find_orphans(self) -> dict[int, list[Process]]:
        tree = self._adopter
        if tree is None:
            return self._tree.orphans()
        # Zombies first: those of a process that forks and exits repeatedly would use up all ids.
        inherited = tree.read_inherited()
        self._tend(tree, inherited)
        # A process that has ended may have left children after they were read.
        has_ended = any(not process.is_alive for process in inherited)
        return tree.orphans(None if has_ended else inherited)

    def _tend(self, tree: ProcTree, inherited: Collection[Process]) -> bool:
        """Reap orphans, and report new ones to the guard; whether some had ended."""
        has_reaped = False
        orphans = tree.adopted(inherited)
        for orphan in orphans:
            if not orphan.is_alive:
                has_reaped |= reap(orphan.pid)
                self._lines.pop(orphan.identity, None)
            elif orphan.identity not in self._lines:
                self._tell_guard(ADOPTED, orphan.identity)
        guard = -1 if self._guard is None else self._guard.pid
        settled = {guard, *(orphan.pid for orphan in orphans)}
        others = [process for process in inherited if process.pid not in settled]
        self._zombies.reap(others, tree.is_launchers)
        return has_reaped

    def _tell_guard(self, rank: int, identity: Identity) -> None:
        line = self._lines[identity] = process_line(rank, *identity)
        if self._guard is not None:
            self._guard.send(line)


class Sweep:
    """Kills all that is left when every worker has ended or was given up.

    The stop sequence has ended the processes that it found. This is for those that came later, and
    for orphans of unknown workers. It ends when a pass finds nothing: then an adopter has no orphan
    among its children, dead or alive, and elsewhere no process has come since all were read.

    Args:
        tree: finds them.
        tend_orphans: reaps orphans that have ended; whether there were some.
        given_up: the ids of processes that have survived SIGKILL.
        patience: seconds to wait for processes to end after SIGKILL.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        tree: GroupTree,
        tend_orphans: Callable[[], bool],
        given_up: Collection[int],
        patience: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.left: list[Process] = []  # the processes that survive
        self._tree = tree
        self._tend_orphans = tend_orphans
        self._given_up = given_up
        self._clock = clock
        self._deadline = clock() + patience
        self._has_logged = False

    def step(self) -> float | None:
        """Kill what is found; return the seconds until the next step, or None at the end."""
        orphans = [process for found in self._tree.orphans().values() for process in found]
        killed, refused = self._tree.kill_all(self._relevant(orphans))
        has_reaped = self._tend_orphans()
        found = self._relevant(killed)
        if not (found or has_reaped) and self._tree.is_sure():
            return None
        if found and not self._has_logged:
            self._has_logged = True
            _log.info("ending orphans: pids %s", [process.pid for process in found])
        is_refused = bool(found) and len(refused) == len(found)
        if is_refused or self._clock() > self._deadline:
            self.left = found
            return None
        return _PAUSE

    def _relevant(self, processes: list[Process]) -> list[Process]:
        return [process for process in processes if process.pid not in self._given_up]
