"""The processes of one start of workers, and that none of them outlives the workers.

A `Job` finds the processes, signals them, and reports them to the guard. The `Reaper` of a launcher
makes a job for each start.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from plaunch.process.marks import (
    ADOPTED,
    HELPER,
    JOBS_VARIABLE,
    inheritable,
    job_line,
    make_job_id,
    make_tags,
    owns_process,
)
from plaunch.process.own_process import become_subreaper
from plaunch.process.proc import PROC, check_table, find_identity, read_children, read_process
from plaunch.process.stopping.evidence import Origin, ZombieReaper, reap
from plaunch.process.stopping.guard import GuardKeeper, is_forkable
from plaunch.process.stopping.tree import ProcessTree

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from plaunch.process.children import ExitPoller, Popen
    from plaunch.process.proc import Process

GUARD_VARIABLE = "PLAUNCH_GUARD"
_UPDATE_PERIOD = 5.0  # seconds between two checks for orphans
_INIT_PERIOD = 1.0  # for the first process of a container, which must find them before they are


class Job:
    """One start of workers: a job tag, and the processes with it.

    `processes` and `orphans` return the same processes until `refresh`.

    Args:
        origin: how its processes are recognized.
        guards: has the guard, to which the processes are reported.
        zombies: reaps the children of an adopter.
    """

    def __init__(self, origin: Origin, guards: GuardKeeper, zombies: ZombieReaper) -> None:
        self._name = origin.job.decode()
        self._proc = origin.proc
        self._tree = tree = ProcessTree(origin)
        # The same tree, if this process inherits the orphans of the job.
        self._adopter = tree if tree.is_adopter else None
        self._zombies = zombies
        self._guards = guards
        self._spared = origin.spared  # helpers are added
        self._processes: dict[int, list[Process]] | None = None
        self._orphans: dict[int, list[Process]] | None = None
        self._killed: set[int] = set()  # local ranks with processes that got SIGKILL

    def tags(self, rank: int | str) -> str:
        """Return the value of `PLAUNCH_JOBS` in the environment of a worker, or of a helper."""
        return make_tags(self._name, rank, os.environ.get(JOBS_VARIABLE))

    def started(self, rank: int, pid: int) -> None:
        """Record a worker; call it as soon as the worker has a process id."""
        identity = find_identity(pid, self._proc)
        self._tree.add_leader(rank, *identity)
        self._guards.report(rank, identity)

    def add_helper(self, pid: int) -> None:
        """Record a helper process of the launcher; call it as soon as it has a process id."""
        identity = find_identity(pid, self._proc)
        self._spared.add(identity)
        self._guards.report(ADOPTED, identity)

    def inherits_orphans(self) -> bool:
        """Whether this process inherits all orphans of the job, and no others.

        It then finds them without having seen their parents.
        """
        return self._adopter is not None and not self._adopter.is_init

    def refresh(self) -> None:
        """Discard what `processes` and `orphans` have found."""
        self._processes = self._orphans = None

    def scan(self) -> None:
        """Find all processes while their parents run, by which their owners are known."""
        self._processes = self._tree.scan()

    def processes(self, rank: int) -> list[Process]:
        """Return all living processes of one local rank, the worker included."""
        if self._processes is None:
            self._processes = self._tree.scan()
        return self._processes.get(rank, [])

    def orphans(self, rank: int) -> list[Process]:
        """Return the living orphans of a worker that has ended and was reaped."""
        if self._orphans is None:
            self._orphans = self._find_orphans()
        return self._orphans.get(rank, [])

    def is_clear(self) -> bool:
        """Whether there are no orphans, and none can have appeared since the last `orphans`.

        Only once all workers have ended. An adopter has inherited every orphan by then; elsewhere,
        new process ids are checked, as in the last pass of a sweep.
        """
        if self._orphans is None or self._orphans or not self.is_sure():
            return False
        if self._adopter is not None:
            return self._adopter.has_no_orphans
        return self._tree.is_quiet()

    def signal(
        self, rank: int, processes: Collection[Process], signum: signal.Signals
    ) -> list[Process]:
        """Signal processes of a local rank; return those that this user may not signal.

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

    def kill_orphans(self, given_up: Collection[int]) -> tuple[list[Process], list[Process]]:
        """Kill all that is left, once every worker has ended or was given up.

        Args:
            given_up: the ids of processes that have survived SIGKILL, which are left out.

        Returns:
            The processes that were found, and those that this user may not signal.
        """
        orphans = [process for found in self._tree.orphans().values() for process in found]
        left = [process for process in orphans if process.pid not in given_up]
        killed, refused = self._tree.kill_all(left)
        return [process for process in killed if process.pid not in given_up], refused

    def is_sure(self) -> bool:
        """Whether the last scan could judge every process; if not, one a second later can."""
        return self._tree.is_sure()

    def update(self) -> None:
        """Reap and record orphans while workers run; every few seconds is enough.

        The first process of a container inherits orphans of other programs too, so it must find the
        job's processes before they are orphans.
        """
        if self._tree.is_init:
            self._tree.scan()
        self.reap_orphans()

    def reap_orphans(self) -> bool:
        """Reap orphans that have ended, and report the others to the guard.

        Does nothing in a process that does not inherit orphans.

        Returns:
            Whether some had ended.
        """
        tree = self._adopter
        return tree is not None and self._reap(tree, tree.read_inherited(only_adopted=True))

    def _find_orphans(self) -> dict[int, list[Process]]:
        tree = self._adopter
        if tree is None:
            return self._tree.orphans()
        # Zombies first: those of a process that forks and exits repeatedly would use up all ids.
        inherited = tree.read_inherited()
        self._reap(tree, inherited)
        # A process that has ended may have left children after they were read.
        has_ended = any(not process.is_alive for process in inherited)
        return tree.orphans(None if has_ended else inherited)

    def _reap(self, tree: ProcessTree, inherited: Collection[Process]) -> bool:
        """Reap orphans, and report new ones to the guard; return whether some had ended."""
        has_reaped = False
        orphans = tree.adopted(inherited)
        for orphan in orphans:
            if orphan.is_alive:
                self._guards.report(ADOPTED, orphan.identity)
            else:
                has_reaped |= reap(orphan.pid)
                self._guards.forget(orphan.identity)
        settled = {orphan.pid for orphan in orphans}
        if self._guards.guard is not None:
            settled.add(self._guards.guard.pid)
        others = [process for process in inherited if process.pid not in settled]
        self._zombies.reap(others, tree.is_launchers)
        return has_reaped


class Reaper:
    """Ensures that nothing outlives the workers; one for each launcher.

    It has no process and no descriptor before `prepare` or `begin`, and none after `close`. All
    methods must be called on one thread.

    Args:
        keep_daemons: spare the orphans if all workers have succeeded.
        use_guard: whether a guard process ends the workers if the launcher is killed; None means
            yes, unless `PLAUNCH_GUARD` is 0.
        proc: the folder of processes.
        clock: seconds that never go back.
        can_fork: whether the guard is a fork of this process, and not another program.

    Attributes:
        period: seconds between two calls of `update_if_due` that have something to do.
    """

    def __init__(
        self,
        *,
        keep_daemons: bool = False,
        use_guard: bool | None = None,
        proc: str = PROC,
        clock: Callable[[], float] = time.monotonic,
        can_fork: Callable[[], bool] = is_forkable,
    ) -> None:
        if use_guard is None:
            use_guard = os.environ.get(GUARD_VARIABLE, "1") != "0"
        self.keep_daemons = keep_daemons
        self.guards = GuardKeeper(is_enabled=use_guard, proc=proc, clock=clock, can_fork=can_fork)
        self._proc = proc
        self._clock = clock
        self._is_subreaper = False
        self._zombies = ZombieReaper(clock)
        self._job: Job | None = None
        self.period = _INIT_PERIOD if os.getpid() == 1 else _UPDATE_PERIOD
        self._updated_at = -self.period

    def begin(
        self,
        *,
        has_forked: bool = False,
        folder: str | None = None,
        poller: ExitPoller | None = None,
    ) -> Job:
        """Begin another start of workers; call it before the first worker starts.

        Args:
            has_forked: whether workers are forked, and not programs of their own.
            folder: a temporary folder for the guard to remove if the launcher is killed.
            poller: woken when the guard ends, so that the caller calls `guards.replace_killed`.

        Raises:
            UsageError: /proc does not show processes.
        """
        check_table(self._proc)
        if not self._is_subreaper and owns_process():
            self._is_subreaper = become_subreaper()
        own = read_process(os.getpid(), self._proc)
        origin = Origin(
            job=make_job_id().encode(),
            proc=self._proc,
            since=0 if own is None else own.start,
            has_forked=has_forked,
            adopter=os.getpid() if self._is_subreaper else 0,
            is_init=os.getpid() == 1,
            clock=self._clock,
        )
        if self._is_subreaper:
            children = (read_process(pid, self._proc) for pid in read_children(self._proc) or ())
            origin.spared.update(child.identity for child in children if child is not None)
        line = job_line(
            origin.job.decode(), since=origin.since, has_forked=has_forked, folder=folder
        )
        self.guards.begin(line, origin.spared, poller)
        self._job = Job(origin, self.guards, self._zombies)
        return self._job

    def update_if_due(self) -> None:
        """Reap and record orphans every few seconds while workers run; call it often."""
        now = self._clock()
        if self._job is not None and now - self._updated_at >= self.period:
            self._updated_at = now
            self._job.update()

    def start_helper(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        start: Callable[..., Popen | None] | None = None,
        **options: Any,
    ) -> Popen:
        """Start a helper process of the launcher, which must not outlive the launcher.

        It is neither a worker nor an orphan. The caller ends it; the guard does if the launcher is
        killed.

        Args:
            command: the program and its arguments.
            environ: its environment; secrets are removed.
            start: starts it, or returns None to let this method execute it.
            options: more arguments of `start` and `Popen`.

        Raises:
            OSError: the system does not start it.
        """
        import subprocess  # a launch of functions may not need it

        if self._job is None:
            raise RuntimeError("a helper is started while there are no workers")
        env = {**inheritable(environ), JOBS_VARIABLE: self._job.tags(HELPER)}
        process = None if start is None else start(command, env=env, **options)
        if process is None:
            process = subprocess.Popen(command, env=env, start_new_session=True, **options)
        self._job.add_helper(process.pid)
        return process

    def close(self) -> None:
        """End the guard; the workers are gone, or are spared."""
        self._job = None
        self.guards.close()
