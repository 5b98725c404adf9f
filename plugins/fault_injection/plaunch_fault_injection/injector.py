"""Injects the faults of one launch, on a thread of its own, when they are due."""

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
    from plaunch.events import Event
    from plaunch.plugin import PluginContext

    from plaunch_fault_injection.faults import Fault
    from plaunch_fault_injection.timetable import Due

_PAUSE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pause.py")
_ASK_EVERY = 0.1  # seconds between two looks whether a worker reads its pipe
_READING_BOUND = 20.0  # seconds for an interpreter to start, on a slow file system too
_PAUSE_BOUND = 30.0  # seconds for the program that stops the launcher, beside the pause itself
_THREAD_BOUND = 0.5  # seconds for the thread to end


class Injector:
    """The extension: told of the rounds of one launch, it breaks what is due in them.

    Args:
        context: the launch.
        faults: what to do.
        clock: seconds that never go back.
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
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._group: GroupInfo | None = None
        self._pids: dict[int, int] = {}  # of this node's workers that run, by global rank
        self._began: float | None = None  # when the workers of the round started
        self._absent: set[int] = set()  # faults whose target does not exist, which was said
        self._exits: ExitPipes | None = None
        self._control: Control
        self._thread: threading.Thread | None = None

    # --- the extension ----------------------------------------------------------------------------

    def start(self, control: Control) -> None:
        """Say what will be done, and begin to wait for it.

        Raises:
            UsageError: there can be no pipes for exit codes.
        """
        self._control = control
        if any(fault.kind == "exit" for fault in self._faults):
            try:
                self._exits = ExitPipes()
            except OSError as error:
                raise UsageError(f"--inject has no folder for its pipes: {error}") from error
        planned = ";".join(fault.text for fault in self._faults)
        path = self._log.open()
        where = "" if path is None else f" (log: {path})"
        control.say(f"this job will be broken on purpose, by --inject='{planned}'{where}")
        self._log.write(planned=planned)
        self.release()

    def handle(self, event: Event) -> None:
        """Do nothing: the hooks come before the workers go on."""

    def stop(self, result: RunResult | None) -> None:
        """End waiting, and remove the pipes."""
        del result
        self.end()
        self.rest()
        if self._exits is not None:
            self._exits.close()

    def rest(self) -> None:
        """Have no thread until `release`, for the process to fork."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None:
            thread.join(_THREAD_BOUND)

    def release(self) -> None:
        """Wait for what is due, on a thread, if there is none."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="plaunch-chaos", daemon=True)
        start_thread(self._thread, blocks_signals=True)

    # --- the rounds -------------------------------------------------------------------------------

    def environment(self, rank: int) -> dict[str, str]:
        """The variables that a worker needs to exit when it is told, if it may be told."""
        may_exit = any(f.kind == "exit" and f.rank in (ANY, rank) for f in self._faults)
        if self._exits is None or not may_exit:
            return {}
        return self._exits.environment(rank, self._python_path)

    def prepare(self, group: GroupInfo) -> None:
        """Know of a round before its workers start."""
        with self._changed:
            self._group, self._began = group, None
            self._timetable.look_at_files()
        world, nodes = _world_size(group), group.group_world_size
        for index, fault in enumerate(self._faults):
            size, what = (nodes, "group rank") if fault.is_agent else (world, "rank")
            if fault.rank is not None and fault.rank >= size and index not in self._absent:
                self._absent.add(index)
                self._tell(fault, f"not done: the last {what} is {size - 1}", is_done=False)

    def begin(self, group: GroupInfo) -> None:
        """Know that the workers of a round run."""
        with self._changed:
            self._group = group
            self._pids = {w.global_rank: w.pid for w in group.workers if w.pid is not None}
            self._began = self._clock()
            world = Round(group.round, group.attempt, _world_size(group), group.group_world_size)
            self._timetable.begin(world, self._began)
            self._changed.notify_all()

    def forget(self, rank: int) -> None:
        """Know that a worker has ended."""
        with self._changed:
            self._pids.pop(rank, None)

    def end(self) -> None:
        """Know that the round ends."""
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
                tasks += [task for at, task in self._later if at <= now]
                self._later = [(at, task) for at, task in self._later if at > now]
                if not tasks:
                    ats = [self._timetable.next_at(), *(at for at, _ in self._later)]
                    self._changed.wait(waitable(min(ats) - now))
            for task in tasks:
                task()

    def _inject(self, due: Due) -> None:
        fault = self._faults[due.place]
        try:
            if fault.is_agent:
                is_hit = self._is_here(fault, due.rank) and self._hit_launcher(fault)
            else:
                is_hit = due.rank is not None and self._hit_worker(fault, due.rank)
        except OSError as error:
            self._tell(fault, f"not done: {error}", is_done=False)
            return
        if is_hit:
            with self._changed:
                self._timetable.count(due.place)

    def _is_here(self, fault: Fault, rank: int | None) -> bool:
        if fault.node:
            return fault.node in (self._host, self._host.partition(".")[0])
        return rank is None or (self._group is not None and rank == self._group.group_rank)

    # --- what is done -----------------------------------------------------------------------------

    def _hit_launcher(self, fault: Fault) -> bool:
        pid, signum = os.getpid(), fault.signum
        if pid == 1 and (fault.kind == "stop" or signum is signal.SIGKILL):
            what = "not done: the first process of a container gets no such signal from inside"
            self._tell(fault, what, pid=pid, is_done=False)
        elif fault.kind == "kill":
            self._tell(fault, f"{signum.name} to this launcher (pid {pid})", pid=pid)
            if signum is signal.SIGKILL and self._exits is not None:
                self._exits.close()
            os.kill(pid, signum)
        else:
            what = f"SIGSTOP to this launcher (pid {pid}) for {fault.seconds:g} s"
            self._tell(fault, what, pid=pid)
            self._pause(fault, pid)
        return True

    def _pause(self, fault: Fault, pid: int) -> None:
        # In a session of its own, so that Ctrl-C leaves it to wake the launcher.
        command = [sys.executable, "-I", "-S", _PAUSE, str(pid), str(fault.seconds)]
        null = subprocess.DEVNULL
        process = subprocess.Popen(
            command, stdin=null, stdout=null, stderr=null, start_new_session=True
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(fault.seconds + _PAUSE_BOUND)
        self._tell(fault, f"this launcher (pid {pid}) goes on", pid=pid)

    def _hit_worker(self, fault: Fault, rank: int) -> bool:
        pid = self._pids.get(rank)
        if pid is None:
            if self._group is not None and rank in {w.global_rank for w in self._group.workers}:
                self._tell(fault, f"not done: rank {rank} has ended", rank, is_done=False)
            return False
        if fault.kind == "exit":
            self._send_exit(fault, rank, pid, self._clock() + _READING_BOUND)
            return True
        signum = fault.signum if fault.kind == "kill" else signal.SIGSTOP
        how_long = f" for {fault.seconds:g} s" if fault.kind == "stop" else ""
        self._tell(fault, f"{signum.name} to rank {rank} (pid {pid}){how_long}", rank, pid)
        self._control.signal_workers(signum, [rank], f"injected by --inject={fault.text}")
        if fault.kind == "stop":
            wake = functools.partial(self._wake, fault, rank, pid)
            self._later.append((self._clock() + fault.seconds, wake))
        return True

    def _wake(self, fault: Fault, rank: int, pid: int) -> None:
        if self._pids.get(rank) == pid:
            self._tell(fault, f"SIGCONT to rank {rank} (pid {pid})", rank, pid)
            self._control.signal_workers(signal.SIGCONT, [rank])

    def _send_exit(self, fault: Fault, rank: int, pid: int, until: float) -> None:
        if self._exits is None or self._pids.get(rank) != pid:
            return
        text = f"exits with code {fault.code}, injected by --inject={fault.text}"
        if self._exits.send(rank, fault.code, f"plaunch: rank {rank} {text}"):
            self._tell(fault, f"exit code {fault.code} for rank {rank} (pid {pid})", rank, pid)
        elif self._clock() < until:
            again = functools.partial(self._send_exit, fault, rank, pid, until)
            self._later.append((self._clock() + _ASK_EVERY, again))
        else:
            what = (
                f"not done: rank {rank} (pid {pid}) does not take an exit code; only a Python "
                "that was started afresh and reads PYTHONPATH does"
            )
            self._tell(fault, what, rank, pid, is_done=False)

    def _tell(
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
            seconds=None if self._began is None else round(self._clock() - self._began, 3),
        )


def _with_seed(fault: Fault, context: PluginContext) -> Fault:
    """The fault with the seed of its draws; made of the run id if none is given."""
    if not fault.is_random or fault.seed is not None:
        return fault
    seed = int(random.Random(context.run_id).random() * 2**31)  # noqa: S311 - no secret
    return fault._replace(seed=seed, text=f"{fault.text},seed={seed}")


def _world_size(group: GroupInfo) -> int:
    return group.workers[0].world_size if group.workers else 0
