"""One start of workers as reaping sees it: their marks, their processes, what became of them."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from plaunch.process.kernel.processes import PROC, read_process
from plaunch.process.stopping.guard.protocol import process_line
from plaunch.process.stopping.reaping import job_tag
from plaunch.process.stopping.reaping.hunt import QUIET, hunt
from plaunch.process.stopping.reaping.job_tag import ADOPTED
from plaunch.process.stopping.reaping.sweep import Sweep
from plaunch.process.stopping.reaping.tree import ProcTree
from plaunch.process.stopping.reaping.zombies import Zombies, reap

if TYPE_CHECKING:
    from collections.abc import Collection

    from plaunch.process.kernel.processes import Identity, Process
    from plaunch.process.stopping.guard.guard import Guard
    from plaunch.process.stopping.reaping.tree import Tree


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
        return job_tag.make_words(self._name, rank, os.environ.get(job_tag.JOBS_VARIABLE))

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
            self._left = self._find_left()
        return self._left.get(rank, [])

    def is_clear(self) -> bool:
        """Whether nobody was left behind, and nobody can have come since `left_behind` said so.

        Only once all workers have ended. What an adopter has not inherited by then it never will;
        elsewhere numbers tell whether there is anybody new, as in the last pass of a sweep.
        """
        if self._left is None or self._left or not self._tree.is_sure():
            return False
        if isinstance(self._tree, ProcTree) and self._tree.is_adopter:
            return self._tree.inherits_nobody
        return not any(self._tree.newcomers() or self._tree.has_missed() for _ in range(QUIET))

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
            self.refresh()

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
        tree = self._tree
        if not isinstance(tree, ProcTree) or not tree.is_adopter:
            return False
        return self._tend(tree, tree.read_inherited())

    def _find_left(self) -> dict[int, list[Process]]:
        tree = self._tree
        if not isinstance(tree, ProcTree) or not tree.is_adopter:
            return tree.left_behind()
        # Tended first, or the dead of one that forks and ends would use up all numbers.
        inherited = tree.read_inherited()
        self._tend(tree, inherited)
        # Who has ended may have left children of its own after we were told of ours.
        has_ended = any(not process.is_alive for process in inherited)
        return tree.left_behind(None if has_ended else inherited)

    def _tend(self, tree: ProcTree, inherited: Collection[Process]) -> bool:
        """Reap orphans, tell the guard of them; whether there were some that had ended."""
        has_reaped = False
        for orphan in tree.orphans(inherited):
            if not orphan.is_alive:
                has_reaped |= reap(orphan.pid)
                self._orphan_lines.pop(orphan.identity, None)
            elif orphan.identity not in self._orphan_lines:
                line = process_line(ADOPTED, *orphan.identity)
                self._orphan_lines[orphan.identity] = line
                self._tell(line)
        guard = -1 if self._guard is None else self._guard.pid
        self._zombies.reap(
            [process for process in inherited if process.pid != guard],
            is_orphan=tree.is_orphan,
            is_launchers=tree.is_launchers,
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
