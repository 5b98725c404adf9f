"""The launcher's side of leaving nothing behind: marks, the guard, orphans, the last sweep."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from typing import TYPE_CHECKING

from plaunch.process.reaping import marker
from plaunch.process.reaping.guard import Guard, start_guard
from plaunch.process.reaping.hunt import hunt
from plaunch.process.reaping.marker import ADOPTED
from plaunch.process.reaping.messages import job_line, process_line
from plaunch.process.reaping.sweep import Sweep
from plaunch.process.reaping.table import PROC, has_table, read_children, read_process
from plaunch.process.reaping.tree import ProcTree, Tree, make_tree
from plaunch.process.reaping.zombies import Zombies, reap

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from plaunch.process.reaping.table import Identity, Process
    from plaunch.process.watch import ExitWatch

_log = logging.getLogger("plaunch")

GUARD_VARIABLE = "PLAUNCH_GUARD"
_TEND_PERIOD = 1.0  # seconds between two looks at orphans
_GUARDS, _GUARDS_PERIOD = 5, 10.0  # so many guards in so many seconds, if they are killed at once


class Reaper:
    """Sees to it that nothing outlives the workers; one for a launcher, whatever it starts.

    It holds no process and no descriptor before `begin`, and none after `close`. All methods are
    for one thread.

    Args:
        keep_daemons: spare what workers leave behind when all of them have succeeded.
        use_guard: whether there is a guard process for the launcher's SIGKILL; None means yes,
            unless `PLAUNCH_GUARD` is 0.
        proc: where the system tells its processes.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        *,
        keep_daemons: bool = False,
        use_guard: bool | None = None,
        proc: str = PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keep_daemons = keep_daemons
        self.guard: Guard | None = None
        self._use_guard = (
            os.environ.get(GUARD_VARIABLE, "1") != "0" if use_guard is None else use_guard
        )
        self._proc = proc
        self._clock = clock
        self._is_subreaper = False
        self._zombies = Zombies(proc, clock=clock)
        self._job: Job | None = None
        self._tended_at = -_TEND_PERIOD
        self._guarded_at: deque[float] = deque(maxlen=_GUARDS)
        self._is_unguarded = False  # there ought to be a guard, and is none yet
        self._was_refused = False  # the system did not give one when it was last asked
        self._watch: ExitWatch | None = None

    def begin(
        self,
        *,
        has_forked: bool = False,
        folder: str | None = None,
        watch: ExitWatch | None = None,
    ) -> Job:
        """Get ready for another start of workers; call it before the first of them.

        Args:
            has_forked: whether workers are forked, and not programs of their own.
            folder: a temporary folder for the guard to remove if the launcher is killed.
            watch: is woken when the guard ends, so that `tend` is called; until `forget_watch`.
        """
        if not self._is_subreaper and marker.owns_process():
            from plaunch.process.reaping.subreaper import (  # noqa: PLC0415 - the command line only
                become_subreaper,
            )

            self._is_subreaper = become_subreaper()
        spared: set[Identity] = set()
        if self._is_subreaper:
            children = (read_process(pid, self._proc) for pid in read_children(self._proc) or ())
            spared.update(child.identity for child in children if child is not None)
        own = read_process(os.getpid(), self._proc)
        name = marker.make_job_id()
        since = 0 if own is None else own.start
        self._job = Job(
            name,
            make_tree(
                name,
                proc=self._proc,
                since=since,
                has_forked=has_forked,
                adopter=os.getpid() if self._is_subreaper and has_table(self._proc) else 0,
                is_init=os.getpid() == 1,
                spared=spared,
            ),
            spared,
            job_line(name, since=since, has_forked=has_forked, folder=folder),
            zombies=self._zombies,
            proc=self._proc,
        )
        if self.guard is not None and not self.guard.is_alive():
            self._drop_guard()
        self._watch = watch
        self._is_unguarded = False
        if self.guard is None and self._use_guard:
            self._start_guard()
        else:
            self._watch_guard()
        self._job.brief(self.guard)
        return self._job

    def forget_watch(self) -> None:
        """Let go of the watch of `begin`, before it is closed."""
        self._unwatch_guard()
        self._watch = None

    def tend(self) -> None:
        """Look after the guard and the orphans; call it often, it looks at these once a second."""
        self.tend_guard()
        now = self._clock()
        if self._job is not None and now - self._tended_at >= _TEND_PERIOD:
            self._tended_at = now
            self._job.tend()

    def tend_guard(self) -> None:
        """Replace the guard if it was killed; call it whenever the watch has woken, also in a stop.

        It happens at once, unless guards end as soon as they are started. If the system gives none,
        it is asked again every ten seconds.
        """
        if self._job is None:
            return
        now = self._clock()
        if self.guard is not None and not self.guard.is_alive():
            _log.warning("the guard (pid %d) was killed; another one takes over", self.guard.pid)
            self._drop_guard()
            self._job.brief(None)
            self._is_unguarded = True
        starts = self._guarded_at
        since = starts[-1] if self._was_refused else starts[0] if len(starts) == _GUARDS else None
        is_soon = since is not None and now - since < _GUARDS_PERIOD
        if self._is_unguarded and not is_soon:
            self._start_guard()
            self._job.brief(self.guard)

    def helper_words(self) -> str:
        """The value of `PLAUNCH_JOBS` for a process of the launcher's own; see `add_helper`."""
        return self._begun().words(marker.HELPER)

    def add_helper(self, pid: int) -> None:
        """Know of a process of the launcher's own, which must not outlive the launcher.

        It counts as nobody's worker, and is not what a worker left behind: whoever started it ends
        it. The guard ends it if the launcher is killed.
        """
        self._begun().add_helper(pid)

    def close(self) -> None:
        """Dismiss the guard; the workers are gone, or are to be left alone."""
        self._job = None
        self._is_unguarded = False
        if self.guard is not None:
            self._unwatch_guard()
            self.guard.dismiss()
            self.guard = None

    def _begun(self) -> Job:
        if self._job is None:
            raise RuntimeError("a helper is started while there are no workers")
        return self._job

    def _start_guard(self) -> None:
        self._guarded_at.append(self._clock())
        self.guard = start_guard(self._proc, is_repeated=self._was_refused)
        if self._was_refused and self.guard is not None:
            _log.info("there is a guard process (pid %d) after all", self.guard.pid)
        self._is_unguarded = self._was_refused = self.guard is None
        self._watch_guard()

    def _drop_guard(self) -> None:
        if self.guard is not None:
            self._unwatch_guard()
            self.guard.close()
            self.guard = None

    def _watch_guard(self) -> None:
        fd = None if self.guard is None else self.guard.exit_fd()
        if self._watch is not None and fd is not None:
            self._watch.add_fd(fd)

    def _unwatch_guard(self) -> None:
        fd = None if self.guard is None else self.guard.exit_fd()
        if self._watch is not None and fd is not None:
            self._watch.remove_fd(fd)


class Job:
    """One start of workers: their marks, and what became of them.

    What `look` and `left_behind` say stays the same until `refresh`.
    """

    def __init__(
        self,
        name: str,
        tree: Tree,
        spared: set[Identity],
        line: bytes,
        *,
        zombies: Zombies,
        proc: str = PROC,
    ) -> None:
        self._name = name
        self._zombies = zombies
        self._tree = tree
        self._spared = spared
        self._lines = [line]
        self._proc = proc
        self._guard: Guard | None = None
        self._orphan_lines: dict[tuple[int, int], bytes] = {}
        self._looked: dict[int, list[Process]] | None = None
        self._left: dict[int, list[Process]] | None = None
        self._hunted: set[int] = set()  # local ranks of whom somebody was killed

    def words(self, rank: int | str) -> str:
        """The value of `PLAUNCH_JOBS` in the environment of a worker, or of a helper."""
        return marker.make_words(self._name, rank, os.environ.get(marker.JOBS_VARIABLE))

    @property
    def line_fd(self) -> int | None:
        """The descriptor through which a worker makes itself known to the guard, if there is one.

        It is close-on-exec, and belongs to the guard.
        """
        return self._guard.line_fd if self._guard is not None and self._guard.is_alive() else None

    def own_fds(self) -> list[int]:
        """All descriptors that a forked worker must not keep."""
        return [] if self._guard is None else self._guard.own_fds()

    def brief(self, guard: Guard | None) -> None:
        """Tell a guard, maybe a new one, all that there is to know."""
        self._guard = guard
        if guard is not None:
            self._spare(guard.pid)
            for line in (*self._lines, *self._orphan_lines.values()):
                guard.tell(line)

    def started(self, rank: int, pid: int) -> None:
        """Know of a worker; call it as soon as it has a number."""
        process = read_process(pid, self._proc)
        start = -1 if process is None else process.start
        self._tree.add_leader(rank, pid, start)
        self._lines.append(process_line(rank, pid, start))
        self._tell(self._lines[-1])

    def add_helper(self, pid: int) -> None:
        """Know of a process of the launcher's own; call it as soon as it has a number."""
        self._lines.append(process_line(ADOPTED, *self._spare(pid)))
        self._tell(self._lines[-1])

    def refresh(self) -> None:
        """Look anew when asked again."""
        self._looked = self._left = None

    def note(self) -> None:
        """Find all processes while their parents live, which tell whose they are."""
        self._looked = self._tree.look()

    def look(self, rank: int) -> list[Process]:
        """All living processes of one local rank, the worker included."""
        if self._looked is None:
            self._looked = self._tree.look()
        return self._looked.get(rank, [])

    def left_behind(self, rank: int) -> list[Process]:
        """What is alive of a worker that has ended and was reaped."""
        if self._left is None:
            self.tend_orphans()  # or the dead of one that forks and ends would use up all numbers
            self._left = self._tree.left_behind()
        return self._left.get(rank, [])

    def signal(self, processes: Collection[Process], signum: signal.Signals) -> list[Process]:
        """Send a signal; returns those that this user may not signal.

        After SIGKILL, call `hunt` when all have got it.
        """
        if signum == signal.SIGKILL:
            self._hunted |= self._tree.ranks_of(processes)
        return self._tree.signal(processes, signum)

    def hunt(self) -> None:
        """Kill those whom the processes have become that were to get SIGKILL since the last call.

        It takes looks at all processes, so that the workers of all ranks get their SIGKILL first.
        """
        if self._hunted:
            ranks, self._hunted = self._hunted, set()
            hunt(self._tree, [], ranks=ranks)

    def begin_sweep(self, given_up: Collection[int], patience: float) -> Sweep:
        """Begin to kill all that is left, when every worker has ended or was given up.

        Args:
            given_up: numbers of processes that have outlived SIGKILL already.
            patience: seconds to wait for processes to end after SIGKILL.
        """
        return Sweep(self._tree, self.tend_orphans, given_up, patience)

    def sweep(self, given_up: Collection[int], patience: float) -> list[Process]:
        """The same to the end; what outlives it."""
        sweep = self.begin_sweep(given_up, patience)
        while (delay := sweep.step()) is not None:
            time.sleep(delay)
        return sweep.left

    def tend(self) -> None:
        """Look after orphans while workers run; about once a second is enough.

        The first process of a container inherits strangers' orphans as well. To tell them from the
        job's it has to know these before they are orphans.
        """
        if isinstance(self._tree, ProcTree) and self._tree.is_init:
            self._tree.look()
        self.tend_orphans()

    def tend_orphans(self) -> bool:
        """Let the system forget orphans that have ended; make the living known to the guard.

        Nothing happens in a process that does not inherit them. The result is whether there were
        some that had ended.
        """
        if not isinstance(self._tree, ProcTree) or not self._tree.is_adopter:
            return False
        has_reaped = False
        for orphan in self._tree.orphans():
            identity = (orphan.pid, orphan.start)
            if not orphan.is_alive:
                has_reaped |= reap(orphan.pid)
                self._orphan_lines.pop(identity, None)
            elif identity not in self._orphan_lines:
                self._orphan_lines[identity] = process_line(ADOPTED, *identity)
                self._tell(self._orphan_lines[identity])
        others = self._tree.inherited()
        if self._guard is not None:
            others.discard(self._guard.pid)
        self._zombies.reap(
            others, is_orphan=self._tree.is_orphan, is_launchers=self._tree.is_launchers
        )
        return has_reaped

    def _spare(self, pid: int) -> Identity:
        """Know of a process that is no worker's; its number may be somebody else's later."""
        process = read_process(pid, self._proc)
        identity = (pid, -1) if process is None else process.identity
        self._spared.add(identity)
        return identity

    def _tell(self, line: bytes) -> None:
        if self._guard is not None:
            self._guard.tell(line)
