"""Ensures that no process outlives the workers: makes jobs, and keeps the guard running."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from plaunch.process.job_tag import HELPER, JOBS_VARIABLE, make_job_id
from plaunch.process.launcher_variables import inheritable, owns_process
from plaunch.process.own_process import become_subreaper
from plaunch.process.proc import PROC, read_children
from plaunch.process.processes import has_table, read_process
from plaunch.process.stopping.evidence import Origin, ZombieReaper
from plaunch.process.stopping.guard import Guard, is_forkable, start_guard
from plaunch.process.stopping.job import Job

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.process.children import ExitWatch
    from plaunch.process.processes import Identity

_log = logging.getLogger("plaunch")

GUARD_VARIABLE = "PLAUNCH_GUARD"
_TEND_PERIOD = 1.0  # seconds between two checks for orphans
_GUARDS, _GUARDS_PERIOD = 5, 10.0  # at most so many guards in so many seconds, if they are killed


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
        self._can_fork = can_fork
        self.keep_daemons = keep_daemons
        self.guard: Guard | None = None
        self._use_guard = (
            os.environ.get(GUARD_VARIABLE, "1") != "0" if use_guard is None else use_guard
        )
        self._proc = proc
        self._clock = clock
        self._is_subreaper = False
        self._zombies = ZombieReaper(clock)
        self._job: Job | None = None
        self._tended_at = -_TEND_PERIOD
        self._guarded_at: deque[float] = deque(maxlen=_GUARDS)
        self._was_refused = False  # the last guard could not be started
        self._watch: ExitWatch | None = None

    def prepare(self) -> None:
        """Start the guard early, while it can be forked: before there are other threads."""
        if self._use_guard and self.guard is None and self._can_fork():
            self.guard = start_guard(self._proc, can_fork=self._can_fork)

    def begin(
        self,
        *,
        has_forked: bool = False,
        folder: str | None = None,
        watch: ExitWatch | None = None,
    ) -> Job:
        """Begin another start of workers; call it before the first worker starts.

        Args:
            has_forked: whether workers are forked, and not programs of their own.
            folder: a temporary folder for the guard to remove if the launcher is killed.
            watch: woken when the guard ends, so that the caller calls `tend_guard`.
        """
        if not self._is_subreaper and owns_process():
            self._is_subreaper = become_subreaper()
        spared: set[Identity] = set()
        if self._is_subreaper:
            children = (read_process(pid, self._proc) for pid in read_children(self._proc) or ())
            spared.update(child.identity for child in children if child is not None)
        own = read_process(os.getpid(), self._proc)
        origin = Origin(
            job=make_job_id().encode(),
            proc=self._proc,
            since=0 if own is None else own.start,
            has_forked=has_forked,
            adopter=os.getpid() if self._is_subreaper and has_table(self._proc) else 0,
            is_init=os.getpid() == 1,
            spared=spared,
            clock=self._clock,
        )
        self._job = job = Job(origin, spared, folder=folder, zombies=self._zombies)
        self._watch = watch
        self._drop_dead_guard()
        if self.guard is not None:
            self.guard.wake(watch)
            job.set_guard(self.guard)
        elif self._use_guard:
            self._start_guard(job)
        return job

    def tend(self) -> None:
        """Reap and record orphans while workers run; call it often, it does so once a second."""
        now = self._clock()
        if self._job is not None and now - self._tended_at >= _TEND_PERIOD:
            self._tended_at = now
            self._job.tend()

    def tend_guard(self) -> None:
        """Replace the guard if it was killed; call it whenever the watch has woken, also in a stop.

        The new guard starts at once, unless guards keep being killed. If the system refuses one,
        this tries again every ten seconds.
        """
        if self._job is None or not self._use_guard:
            return
        killed = self._drop_dead_guard()
        if killed:
            self._job.set_guard(None)
        starts = self._guarded_at
        since = starts[-1] if self._was_refused else starts[0] if len(starts) == _GUARDS else None
        is_soon = since is not None and self._clock() - since < _GUARDS_PERIOD
        if self.guard is None and not is_soon:
            self._start_guard(self._job)
        if killed:  # logged last: a message takes time, during which workers would have no guard
            _log.warning("the guard (pid %d) was killed; another one takes over", killed.pid)

    def start_helper(
        self, command: Sequence[str], environ: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a helper process of the launcher, which must not outlive the launcher.

        It is neither a worker nor an orphan. The caller ends it; the guard does if the launcher is
        killed.

        Args:
            command: the program and its arguments.
            environ: its environment; secrets are removed.
            options: more arguments of `Popen`.

        Raises:
            OSError: the system does not start it.
        """
        import subprocess  # a launch of functions may not need it

        job = self._begun()
        process = subprocess.Popen(
            command,
            env={**inheritable(environ), JOBS_VARIABLE: job.tags(HELPER)},
            start_new_session=True,
            **options,
        )
        job.add_helper(process.pid)
        return process

    def close(self) -> None:
        """End the guard; the workers are gone, or are spared."""
        self._job = None
        if self.guard is not None:
            self.guard.dismiss()
            self.guard = None

    def _begun(self) -> Job:
        if self._job is None:
            raise RuntimeError("a helper is started while there are no workers")
        return self._job

    def _drop_dead_guard(self) -> Guard | None:
        if self.guard is None or self.guard.is_alive():
            return None
        dead, self.guard = self.guard, None
        dead.close()
        return dead

    def _start_guard(self, job: Job) -> None:
        self._guarded_at.append(self._clock())
        self.guard = guard = start_guard(
            self._proc, is_repeated=self._was_refused, can_fork=self._can_fork
        )
        if guard is not None:
            if self._was_refused:
                _log.info("the guard process (pid %d) has started now", guard.pid)
            guard.wake(self._watch)
            job.set_guard(guard)
        self._was_refused = guard is None
