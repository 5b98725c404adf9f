"""Facts about workers in /proc: output files, CPU time, children; and whether they compute."""

from __future__ import annotations

import os
import re
import stat
import time
from typing import TYPE_CHECKING, NamedTuple

from plaunch.process import (
    children_by_parent,
    list_numbers,
    read_fds,
    read_proc,
    read_stat,
    read_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

PROC = "/proc"
_PARTS = 10  # of a second: less CPU time is not considered movement
_TICKS = os.sysconf("SC_CLK_TCK")
_SWITCHES = re.compile(rb"ctxt_switches:\s*(\d+)")  # voluntary and involuntary ones

_GPUS = ("/dev/nvidia", "/dev/kfd")  # devices that a process that uses a GPU has open
_SHARE = 0.1  # a process that uses this fraction of a CPU is computing
_MOST_SYSTEM = 0.1  # the greatest fraction of system time of a computing thread


class ProcessorTime(NamedTuple):
    """The CPU time of a process in seconds.

    Args:
        user: user time of the main thread.
        system: system time of the main thread.
        threads_user: user time of all threads.
        threads_system: system time of all threads.
        waited: time for which the main thread was runnable, but waited for a CPU.
        children: CPU time of all descendants, including those that have ended.
    """

    user: float = 0.0
    system: float = 0.0
    threads_user: float = 0.0
    threads_system: float = 0.0
    waited: float = 0.0
    children: float = 0.0


def read_written(pid: int, proc: str = PROC) -> tuple[int, ...]:
    """The sizes of the files that are the stdout and the stderr of a process.

    0 if it is not a regular file, or one that this process writes to as well.
    """
    return tuple(_written(pid, fd, proc) for fd in (1, 2))


def read_uses(pids: Collection[int], proc: str = PROC) -> dict[int, Hashable]:
    """The activity of processes and their descendants, as reported by the kernel.

    The value changes when one of them makes another system call, or has used another tenth of a
    second of CPU time. Processes that have ended are left out.
    """
    below = children_by_parent(read_table(proc))
    uses = {pid: _read_use(_tree(pid, below), proc) for pid in pids}
    return {pid: use for pid, use in uses.items() if use is not None}


def read_processor_times(pids: Collection[int], proc: str = PROC) -> dict[int, ProcessorTime]:
    """The CPU time of each process; those that have ended are left out."""
    below = children_by_parent(read_table(proc))
    times = {pid: _read_processor_time(_tree(pid, below), proc) for pid in pids}
    return {pid: time for pid, time in times.items() if time is not None}


def read_parents(pids: Collection[int], proc: str = PROC) -> dict[int, dict[int, int]]:
    """The parents of all descendants of each process, parents before children."""
    below = children_by_parent(read_table(proc))
    parents = {child: pid for pid, children in below.items() for child in children}
    return {pid: {child: parents[child] for child in _tree(pid, below)[1:]} for pid in pids}


def read_use(pid: int, proc: str = PROC) -> Hashable:
    """The CPU time and the number of context switches of a process.

    The value changes whenever one of its threads runs. None if the process has ended.
    """
    threads = list_numbers(f"{pid}/task", proc)
    if not threads:
        return None
    ticks = _read_ticks(pid, proc)
    counts = (
        _SWITCHES.findall(read_proc(f"{pid}/task/{thread}/status", proc)) for thread in threads
    )
    return ticks, sum(int(count) for found in counts for count in found)


def uses_gpu(pid: int, proc: str = PROC) -> bool:
    """Whether a process has a GPU open; False if that cannot be read."""
    return any(target.startswith(_GPUS) for target in read_fds(pid, proc).values())


def _read_processor_time(pids: Sequence[int], proc: str) -> ProcessorTime | None:
    main, *children = pids
    thread = f"{main}/task/{main}"
    own = _read_ticks(thread, proc)
    if own is None:
        return None
    # Not every kernel has this file. Threads wait on a busy machine, or in a limited container.
    waited = read_proc(f"{thread}/schedstat", proc).split()[1:2]
    found = [_read_ticks(pid, proc) for pid in children]
    threads = _read_ticks(main, proc) or own
    ticks = sum(threads[2:]) + sum(sum(each) for each in found if each is not None)
    return ProcessorTime(
        user=own[0] / _TICKS,
        system=own[1] / _TICKS,
        threads_user=threads[0] / _TICKS,
        threads_system=threads[1] / _TICKS,
        waited=int(waited[0]) / 1e9 if waited else 0.0,
        children=ticks / _TICKS,
    )


def _read_ticks(pid: int | str, proc: str) -> tuple[int, int, int, int] | None:
    """User and system time, of the process and of its children that have ended."""
    fields = read_stat(pid, proc)
    if len(fields) < 15:
        return None
    user, system, children_user, children_system = map(int, fields[11:15])
    return user, system, children_user, children_system


def _tree(pid: int, below: Mapping[int, list[int]]) -> list[int]:
    found = [pid]
    for one in found:
        found += sorted(below.get(one, ()))
    return found


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
        read: reads the CPU times of processes.
        uses_gpu: returns whether a process uses a GPU.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        read: Callable[[Collection[int]], Mapping[int, ProcessorTime]] = read_processor_times,
        uses_gpu: Callable[[int], bool] = uses_gpu,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._uses_gpu = uses_gpu
        self._clock = clock
        self._starts: dict[int, _Start] = {}  # by process

    def sample(self, spans: Mapping[int, float], threaded: Collection[int] = ()) -> set[int]:
        """Take the next sample; return the processes that computed since their span began.

        Args:
            spans: the processes, each with the seconds of a span.
            threaded: processes of which all threads count, not only the main thread.
        """
        now, times = self._clock(), self._read(spans) if spans else {}
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
        if now.children - before.children >= _SHARE * passed:
            return True
        user, system = now.user - before.user, now.system - before.system
        if is_threaded:
            user = now.threads_user - before.threads_user
            system = now.threads_system - before.threads_system
        # On a busy machine, a computing thread waits for a CPU instead of sleeping.
        could_run = passed - (now.waited - before.waited)
        if user + system < _SHARE * could_run:
            return False
        # A thread that polls spends its time in system calls.
        if system > _MOST_SYSTEM * (user + system):
            return False
        # CUDA waits for a GPU in a loop without system calls.
        return not self._uses_gpu(pid)
