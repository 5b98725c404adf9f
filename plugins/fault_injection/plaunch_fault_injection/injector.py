"""Injects the faults of one launch when they are due, on its own thread."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from plaunch.agent import Extension
from plaunch.durations import waitable
from plaunch.errors import UsageError
from plaunch.threads import start_thread

from plaunch_fault_injection.exits import ExitPipes
from plaunch_fault_injection.faults import ANY
from plaunch_fault_injection.log import FaultLog
from plaunch_fault_injection.timetable import Round, Timetable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch.agent import Control, GroupInfo, RunResult
    from plaunch.plugin import PluginContext

    from plaunch_fault_injection.faults import Fault
    from plaunch_fault_injection.timetable import Due

_PAUSE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pause.py")
_RETRY_INTERVAL = 0.1  # seconds between two attempts to send an exit code
_EXIT_TIMEOUT = 20.0  # seconds for an interpreter to start, also on a slow file system
_PAUSE_TIMEOUT = 30.0  # seconds for the program that suspends the launcher, without the pause
_THREAD_TIMEOUT = 0.5  # seconds for the thread to end


class Injector(Extension):
    """The extension that injects the faults of one launch.

    Args:
        context: the launch.
        faults: the faults.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        context: PluginContext,
        faults: Sequence[Fault],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._faults = [_with_seed(fault, context) for fault in faults]
        self._host = context.host
        given = context.settings.get("worker_env")
        paths = {**os.environ, **(given if isinstance(given, dict) else {})}
        self._python_path = str(paths.get("PYTHONPATH", ""))
        self._timetable = Timetable(self._faults)
        self._log = FaultLog(context)
        self._clock = clock
        self._changed = threading.Condition()
        self._scheduled: list[tuple[float, Callable[[], None]]] = []  # by time
        self._group: GroupInfo | None = None
        self._pids: dict[int, int] = {}  # of this node's running workers, by global rank
        self._started_at: float | None = None  # start of the workers of the round
        self._absent: set[int] = set()  # faults whose missing target was reported
        self._exits: ExitPipes | None = None
        self._control: Control
        self._thread: threading.Thread | None = None

    # --- the extension ----------------------------------------------------------------------------

    def start(self, control: Control) -> None:
        """Log the planned faults, and start the thread.

        Raises:
            UsageError: the pipes for exit codes cannot be created.
        """
        self._control = control
        if any(fault.kind == "exit" for fault in self._faults):
            try:
                self._exits = ExitPipes()
            except OSError as error:
                raise UsageError(
                    f"--inject cannot create a temporary folder for its pipes: {error}"
                ) from error
        planned = ";".join(fault.text for fault in self._faults)
        path = self._log.open()
        where = "" if path is None else f" (log: {path})"
        control.say(f"this job will be broken on purpose, by --inject='{planned}'{where}")
        self._log.write(planned=planned)
        self.release()

    def stop(self, result: RunResult | None) -> None:
        """End the thread, and remove the pipes."""
        del result
        self.end()
        self.rest()
        if self._exits is not None:
            self._exits.close()

    def rest(self) -> None:
        """End the thread until `release`, so that the process can fork."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None:
            thread.join(_THREAD_TIMEOUT)

    def release(self) -> None:
        """Start the thread if it does not run."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="plaunch-chaos", daemon=True)
        start_thread(self._thread, blocks_signals=True)

    # --- the rounds -------------------------------------------------------------------------------

    def environment(self, rank: int) -> dict[str, str]:
        """The variables that make a worker exit on request; empty without an `exit` for it."""
        may_exit = any(f.kind == "exit" and f.rank in (ANY, rank) for f in self._faults)
        if self._exits is None or not may_exit:
            return {}
        return self._exits.environment(rank, self._python_path)

    def prepare(self, group: GroupInfo) -> None:
        """Prepare a round, before its workers start."""
        with self._changed:
            self._group, self._started_at = group, None
            self._timetable.record_files()
        world, nodes = _world_size(group), group.group_world_size
        for index, fault in enumerate(self._faults):
            size, what = (nodes, "group rank") if fault.is_agent else (world, "rank")
            if fault.rank is not None and fault.rank >= size and index not in self._absent:
                self._absent.add(index)
                self._report(fault, f"not done: the last {what} is {size - 1}", is_done=False)

    def begin(self, group: GroupInfo) -> None:
        """Begin a round whose workers have started."""
        with self._changed:
            self._group = group
            self._pids = {w.global_rank: w.pid for w in group.workers if w.pid is not None}
            self._started_at = self._clock()
            round_ = Round(group.round, group.attempt, _world_size(group), group.group_world_size)
            self._timetable.begin(round_, self._started_at)
            self._changed.notify_all()

    def remove_worker(self, rank: int) -> None:
        """Remove a worker that has ended."""
        with self._changed:
            self._pids.pop(rank, None)

    def end(self) -> None:
        """End the round: nothing is due before the next one."""
        with self._changed:
            self._timetable.end()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._thread is not threading.current_thread():
                    return
                now = self._clock()
                tasks: list[Callable[[], None]] = [
                    functools.partial(self._inject, due) for due in self._timetable.take(now)
                ]
                tasks += [task for at, task in self._scheduled if at <= now]
                self._scheduled = [(at, task) for at, task in self._scheduled if at > now]
                if not tasks:
                    times = [self._timetable.next_at(), *(at for at, _ in self._scheduled)]
                    self._changed.wait(waitable(min(times) - now))
            for task in tasks:
                task()

    def _inject(self, due: Due) -> None:
        fault = self._faults[due.position]
        try:
            if fault.is_agent:
                counts = self._is_target(fault, due.rank) and self._inject_into_launcher(fault)
            else:
                counts = due.rank is not None and self._inject_into_worker(fault, due.rank)
        except OSError as error:
            self._report(fault, f"not done: {error}", is_done=False)
            return
        if counts:
            with self._changed:
                self._timetable.count(due.position)

    def _is_target(self, fault: Fault, rank: int | None) -> bool:
        if fault.node:
            return fault.node in (self._host, self._host.partition(".")[0])
        return rank is None or (self._group is not None and rank == self._group.group_rank)

    # --- the faults -------------------------------------------------------------------------------

    def _inject_into_launcher(self, fault: Fault) -> bool:
        pid, signum = os.getpid(), fault.signum
        if pid == 1 and (fault.kind == "stop" or signum is signal.SIGKILL):
            what = "not done: the first process of a container gets no such signal from inside"
            self._report(fault, what, pid=pid, is_done=False)
        elif fault.kind == "kill":
            self._report(fault, f"{signum.name} to this launcher (pid {pid})", pid=pid)
            if signum is signal.SIGKILL and self._exits is not None:
                self._exits.close()
            os.kill(pid, signum)
        else:
            what = f"SIGSTOP to this launcher (pid {pid}) for {fault.seconds:g} s"
            self._report(fault, what, pid=pid)
            self._pause(fault, pid)
        return True

    def _pause(self, fault: Fault, pid: int) -> None:
        # In a new session, so that Ctrl-C does not end it before it resumes the launcher.
        command = [sys.executable, "-I", "-S", _PAUSE, str(pid), str(fault.seconds)]
        null = subprocess.DEVNULL
        process = subprocess.Popen(
            command, stdin=null, stdout=null, stderr=null, start_new_session=True
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(fault.seconds + _PAUSE_TIMEOUT)
        self._report(fault, f"this launcher (pid {pid}) continues", pid=pid)

    def _inject_into_worker(self, fault: Fault, rank: int) -> bool:
        pid = self._pids.get(rank)
        if pid is None:
            if self._group is not None and rank in {w.global_rank for w in self._group.workers}:
                self._report(fault, f"not done: rank {rank} has ended", rank, is_done=False)
            return False
        if fault.kind == "exit":
            self._send_exit(fault, rank, pid, self._clock() + _EXIT_TIMEOUT)
            return True
        signum = fault.signum if fault.kind == "kill" else signal.SIGSTOP
        how_long = f" for {fault.seconds:g} s" if fault.kind == "stop" else ""
        self._report(fault, f"{signum.name} to rank {rank} (pid {pid}){how_long}", rank, pid)
        self._control.signal_workers(signum, [rank], f"injected by --inject={fault.text}")
        if fault.kind == "stop":
            resume = functools.partial(self._resume_worker, fault, rank, pid)
            self._scheduled.append((self._clock() + fault.seconds, resume))
        return True

    def _resume_worker(self, fault: Fault, rank: int, pid: int) -> None:
        if self._pids.get(rank) == pid:
            self._report(fault, f"SIGCONT to rank {rank} (pid {pid})", rank, pid)
            self._control.signal_workers(signal.SIGCONT, [rank])

    def _send_exit(self, fault: Fault, rank: int, pid: int, until: float) -> None:
        if self._exits is None or self._pids.get(rank) != pid:
            return
        text = f"exits with code {fault.code}, injected by --inject={fault.text}"
        if self._exits.send(rank, fault.code, f"plaunch: rank {rank} {text}"):
            self._report(fault, f"exit code {fault.code} for rank {rank} (pid {pid})", rank, pid)
        elif self._clock() < until:
            again = functools.partial(self._send_exit, fault, rank, pid, until)
            self._scheduled.append((self._clock() + _RETRY_INTERVAL, again))
        else:
            what = (
                f"not done: rank {rank} (pid {pid}) does not accept an exit code; only a Python "
                "process that was not forked and reads PYTHONPATH does"
            )
            self._report(fault, what, rank, pid, is_done=False)

    def _report(
        self,
        fault: Fault,
        what: str,
        rank: int | None = None,
        pid: int | None = None,
        *,
        is_done: bool = True,
    ) -> None:
        self._control.say(f"{fault.text}: {what}")
        group = self._group
        self._log.write(
            fault=fault.text,
            kind=fault.kind,
            what=what,
            is_done=is_done,
            rank=rank,
            pid=pid,
            round=None if group is None else group.round,
            attempt=None if group is None else group.attempt,
            seconds=None
            if self._started_at is None
            else round(self._clock() - self._started_at, 3),
        )


def _with_seed(fault: Fault, context: PluginContext) -> Fault:
    """The fault with a seed for its random choices; derived from the run id if not given."""
    if not fault.is_random or fault.seed is not None:
        return fault
    seed = int(random.Random(context.run_id).random() * 2**31)  # noqa: S311 - no secret
    return fault._replace(seed=seed, text=f"{fault.text},seed={seed}")


def _world_size(group: GroupInfo) -> int:
    return group.workers[0].world_size if group.workers else 0
