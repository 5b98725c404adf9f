"""Facts about workers in /proc: output files, CPU time, children; and whether they compute."""

from __future__ import annotations

import os
import re
import stat
import time
from typing import TYPE_CHECKING, NamedTuple

from plaunch.process import (
    JOBS_VARIABLE,
    children_by_parent,
    find_variable,
    list_numbers,
    read_environ,
    read_fds,
    read_proc,
    read_stat,
    read_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping

    from plaunch.process import Process

PROC = "/proc"
_PARTS = 10  # of a second: less CPU time is not considered movement
_TICKS = os.sysconf("SC_CLK_TCK")
_SWITCHES = re.compile(rb"ctxt_switches:\s*(\d+)")  # voluntary and involuntary ones

_TAG = re.compile(rb"\b[0-9a-f]{12}\.\d+\b")  # the job and the local rank of a worker
_TITLE = re.compile(rb"(?:worker \d+ )?((?:[0-9a-f]{12}\.\w+:?)+)\0*")  # of a forked worker

_GPUS = ("/dev/nvidia", "/dev/kfd")  # devices that a process that uses a GPU has open
_SHARE = 0.1  # a thread that uses this fraction of a CPU is computing
_MOST_SYSTEM = 0.1  # the greatest fraction of system time of a computing thread


class ThreadTime(NamedTuple):
    """The CPU time of one thread in seconds.

    Args:
        used: time for which it ran.
        waited: time for which it could run, but waited for a CPU.
        is_runnable: whether it runs or waits for a CPU now.
    """

    used: float = 0.0
    waited: float = 0.0
    is_runnable: bool = False


class ProcessorTime(NamedTuple):
    """The CPU time of a worker and its descendants in seconds.

    Args:
        user: user time of the main thread.
        system: system time of the main thread.
        threads_user: user time of all threads of the worker.
        threads_system: system time of all threads of the worker.
        children: CPU time of all descendants, including those that have ended.
        threads: the threads of the worker, by thread id; the main thread has that of the worker.
        child_threads: the threads of its descendants, by thread id.
        descendants: the number of its descendants.
    """

    user: float = 0.0
    system: float = 0.0
    threads_user: float = 0.0
    threads_system: float = 0.0
    children: float = 0.0
    threads: Mapping[int, ThreadTime] = {}
    child_threads: Mapping[int, ThreadTime] = {}
    descendants: int = 0


class ProcessFacts:
    """Reads facts about workers, and finds the processes that they have started.

    A helper whose parents have ended, such as a service that has forked twice, belongs to the
    worker if it is in its session, or has its tag in the environment or in its command line.

    Args:
        proc: the folder of processes.
    """

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._tags: dict[tuple[int, int], list[bytes]] = {}  # by pid and start time

    def find_parents(self, pids: Collection[int]) -> dict[int, dict[int, int]]:
        """Find all descendants of each process, with their parents; parents before children.

        The parent of a process that has left its worker is that worker.
        """
        table = {pid: one for pid, one in read_table(self._proc).items() if one.is_alive}
        below = children_by_parent(table)
        found = {pid: self._descend(pid, below) for pid in pids}
        self._add_orphans(found, table, below)
        return found

    def _add_orphans(
        self,
        found: Mapping[int, dict[int, int]],
        table: Mapping[int, Process],
        below: Mapping[int, list[int]],
    ) -> None:
        workers = {pid: table[pid] for pid in found if pid in table}
        owners = {tag: pid for pid, one in workers.items() if (tag := self._own_tag(one))}
        since = min((one.start for one in workers.values()), default=0)
        known = {
            os.getpid(),
            *found,
            *(child for parents in found.values() for child in parents),
        }
        seen: dict[tuple[int, int], list[bytes]] = {}
        for pid, process in sorted(table.items()):
            if process.start < since or pid in known:
                continue
            tags = self._tags.get(process.identity)
            if tags is None:
                tags = self._read_tags(pid)
            if tags is not None:
                seen[process.identity] = tags
            owner = process.session if process.session in workers else None
            owner = next((owners[tag] for tag in tags or () if tag in owners), owner)
            if owner is not None and process.start >= workers[owner].start:
                found[owner].update({pid: owner, **self._descend(pid, below)})
                known.update(found[owner])
        self._tags = seen

    def read_uses(self, pids: Collection[int]) -> dict[int, Hashable]:
        """Read the activity of processes and their descendants, as reported by the kernel.

        The value changes when one of them makes another system call, or has used another tenth of a
        second of CPU time. Processes that have ended are left out.
        """
        below = self.find_parents(pids)
        uses = {pid: _read_use([pid, *below[pid]], self._proc) for pid in pids}
        return {pid: use for pid, use in uses.items() if use is not None}

    def read_use(self, pid: int) -> Hashable:
        """Read the CPU time and the number of context switches of one process.

        The value changes whenever one of its threads runs. None if the process has ended.
        """
        threads = list_numbers(f"{pid}/task", self._proc)
        if not threads:
            return None
        counts = (
            _SWITCHES.findall(read_proc(f"{pid}/task/{thread}/status", self._proc))
            for thread in threads
        )
        ticks = _read_ticks(pid, self._proc)
        return ticks, sum(int(count) for found in counts for count in found)

    def read_written(self, pid: int) -> tuple[int, ...]:
        """Read the sizes of the files that are the stdout and the stderr of a process.

        0 if it is not a regular file, or one that this process writes to as well.
        """
        return tuple(_written(pid, fd, self._proc) for fd in (1, 2))

    @staticmethod
    def _descend(top: int, below: Mapping[int, list[int]]) -> dict[int, int]:
        parents: dict[int, int] = {}
        open_ends = [top]
        for one in open_ends:
            for child in sorted(below.get(one, ())):
                if child not in parents and child != top:
                    parents[child] = one
                    open_ends.append(child)
        return parents

    def _own_tag(self, worker: Process) -> bytes:
        """The tag of a worker: the last one, after those of outer jobs; empty without one."""
        tags = self._read_tags(worker.pid)
        return tags[-1] if tags else b""

    def _read_tags(self, pid: int) -> list[bytes] | None:
        """The tags in the environment, and those that a forked worker has as its command line.

        None if there is no environment: it may not be read, or the process is in an execve.
        """
        environ = read_environ(pid, self._proc)
        title = _TITLE.fullmatch(read_proc(f"{pid}/cmdline", self._proc))
        tags = _TAG.findall(os.fsencode(find_variable(environ, JOBS_VARIABLE)))
        tags += _TAG.findall(title[1]) if title else []
        return tags if environ or tags else None


def read_processor_times(
    parents: Mapping[int, Collection[int]], proc: str = PROC
) -> dict[int, ProcessorTime]:
    """The CPU time of each process; those that have ended are left out.

    Args:
        parents: the descendants of each process.
        proc: the folder of processes.
    """
    times = {pid: _read_processor_time(pid, below, proc) for pid, below in parents.items()}
    return {pid: time for pid, time in times.items() if time is not None}


def uses_gpu(pid: int, proc: str = PROC) -> bool:
    """Whether a process has a GPU open; False if that cannot be read."""
    return any(target.startswith(_GPUS) for target in read_fds(pid, proc).values())


def _read_processor_time(pid: int, below: Collection[int], proc: str) -> ProcessorTime | None:
    own = _read_ticks(f"{pid}/task/{pid}", proc)
    if own is None:
        return None
    found = [_read_ticks(child, proc) for child in below]
    threads = _read_ticks(pid, proc) or own
    ticks = sum(threads[2:]) + sum(sum(each) for each in found if each is not None)
    child_threads: dict[int, ThreadTime] = {}
    for child in below:
        child_threads.update(_read_threads(child, proc))
    return ProcessorTime(
        user=own[0] / _TICKS,
        system=own[1] / _TICKS,
        threads_user=threads[0] / _TICKS,
        threads_system=threads[1] / _TICKS,
        children=ticks / _TICKS,
        threads=_read_threads(pid, proc),
        child_threads=child_threads,
        descendants=len(below),
    )


def _read_threads(pid: int, proc: str) -> dict[int, ThreadTime]:
    threads = {}
    for thread in list_numbers(f"{pid}/task", proc):
        fields = read_stat(f"{pid}/task/{thread}", proc)
        if len(fields) < 15 or fields[0] == b"Z":
            continue
        used, waited = (int(fields[11]) + int(fields[12])) / _TICKS, 0.0
        # Not every kernel has this file, which is more precise, and has the time in run queues.
        exact = read_proc(f"{pid}/task/{thread}/schedstat", proc).split()
        if len(exact) > 1:
            used, waited = int(exact[0]) / 1e9, int(exact[1]) / 1e9
        threads[thread] = ThreadTime(used, waited, fields[0] == b"R")
    return threads


def _read_ticks(pid: int | str, proc: str) -> tuple[int, int, int, int] | None:
    """User and system time, of the process and of its children that have ended."""
    fields = read_stat(pid, proc)
    if len(fields) < 15:
        return None
    user, system, children_user, children_system = map(int, fields[11:15])
    return user, system, children_user, children_system


def _read_use(pids: Collection[int], proc: str) -> Hashable:
    seconds, calls = 0.0, []
    for pid in pids:
        fields = read_stat(pid, proc)
        if len(fields) < 13:
            continue
        seconds += (int(fields[11]) + int(fields[12])) / _TICKS
        # One may be readable without the other.
        call = read_proc(f"{pid}/syscall", proc).partition(b" ")[0]
        calls.append((pid, call or read_proc(f"{pid}/wchan", proc)))
    return (int(seconds * _PARTS), *calls) if calls else None


def _written(pid: int, fd: int, proc: str) -> int:
    try:
        found = os.stat(f"{proc}/{pid}/fd/{fd}")
    except OSError:
        return 0
    if not stat.S_ISREG(found.st_mode) or any(_is_open_here(found, own) for own in (1, 2)):
        return 0
    return found.st_size


def _is_open_here(found: os.stat_result, fd: int) -> bool:
    """Whether this process writes to the file too; its own messages are not movement of workers."""
    try:
        return os.path.samestat(found, os.fstat(fd))
    except OSError:
        return False


class _Start(NamedTuple):
    """The beginning of a span: the time, and the CPU time of the process."""

    now: float
    time: ProcessorTime


class ComputeWatch:
    """Finds out which of the suspected workers compute.

    Args:
        read: reads the CPU times of processes, given their descendants.
        uses_gpu: returns whether a process uses a GPU.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        read: Callable[
            [Mapping[int, Collection[int]]], Mapping[int, ProcessorTime]
        ] = read_processor_times,
        uses_gpu: Callable[[int], bool] = uses_gpu,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._uses_gpu = uses_gpu
        self._clock = clock
        self._starts: dict[int, _Start] = {}  # by process

    def sample(
        self,
        spans: Mapping[int, float],
        threaded: Collection[int] = (),
        below: Mapping[int, Collection[int]] | None = None,
    ) -> set[int]:
        """Take the next sample; return the processes that computed since their span began.

        Args:
            spans: the processes, each with the seconds of a span.
            threaded: processes of which all threads count, not only the main thread.
            below: the descendants of each process.
        """
        trees = {pid: (below or {}).get(pid, ()) for pid in spans}
        now, times = self._clock(), self._read(trees) if spans else {}
        self._starts = {pid: start for pid, start in self._starts.items() if pid in times}
        found = set()
        for pid, current in times.items():
            start = self._starts.setdefault(pid, _Start(now, current))
            passed = now - start.now
            if passed >= spans[pid] and self._computes(
                pid, start.time, current, passed, is_threaded=pid in threaded
            ):
                found.add(pid)
                del self._starts[pid]
        return found

    def _computes(
        self,
        pid: int,
        before: ProcessorTime,
        now: ProcessorTime,
        passed: float,
        *,
        is_threaded: bool,
    ) -> bool:
        if _children_share(before, now, passed) >= _SHARE:
            return True
        user, system = now.user - before.user, now.system - before.system
        threads = {pid: now.threads[pid]} if pid in now.threads else {}
        if is_threaded:
            user = now.threads_user - before.threads_user
            system = now.threads_system - before.threads_system
            threads = dict(now.threads)
        if _share(before.threads, threads, passed) < _SHARE:
            return False
        # A thread that polls spends its time in system calls.
        if system > _MOST_SYSTEM * (user + system):
            return False
        # CUDA waits for a GPU in a loop without system calls.
        return not self._uses_gpu(pid)


def _share(before: Mapping[int, ThreadTime], now: Mapping[int, ThreadTime], passed: float) -> float:
    """The CPUs that threads would have used if none had waited for a CPU.

    On a busy machine, or in a limited container, a computing thread waits for a CPU instead of
    sleeping.
    """
    share = 0.0
    for number, thread in now.items():
        known = before.get(number, ThreadTime())
        used, waited = thread.used - known.used, thread.waited - known.waited
        if not used and not waited and thread.is_runnable:
            share += 1.0  # the kernel counts a wait when it ends
            continue
        could_run = passed - waited
        share += used / could_run if could_run > used else 1.0
    return share


def _children_share(before: ProcessorTime, now: ProcessorTime, passed: float) -> float:
    """The same for all descendants, including those that have ended."""
    share = _share(before.child_threads, now.child_threads, passed)
    seen = sum(
        thread.used - before.child_threads.get(number, ThreadTime()).used
        for number, thread in now.child_threads.items()
    )
    # The kernel rounds the time of each process down to ticks.
    ended = now.children - before.children - seen - now.descendants / _TICKS
    return share + max(ended, 0.0) / passed
