"""What /proc tells of a worker beside its stack: what it wrote, used and started."""

from __future__ import annotations

import os
import re
import stat
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
    from collections.abc import Collection, Hashable, Mapping, Sequence

PROC = "/proc"
_PARTS = 10  # of a second that a processor is used for: what is less is no movement
_TICKS = os.sysconf("SC_CLK_TCK")
_SWITCHES = re.compile(rb"ctxt_switches:\s*(\d+)")  # voluntary ones, and others


_GPUS = ("/dev/nvidia", "/dev/kfd")  # what a process has open that uses one


class ProcessorTime(NamedTuple):
    """Seconds of processors that a process has used, and its children.

    Args:
        user: of the main thread outside of system calls.
        system: of the main thread in system calls.
        threads_user: of all its threads outside of system calls.
        threads_system: of all its threads in system calls.
        waited: for which the main thread could have run, but other threads had the processor.
        children: of all processes below it, also of those that have ended.
    """

    user: float = 0.0
    system: float = 0.0
    threads_user: float = 0.0
    threads_system: float = 0.0
    waited: float = 0.0
    children: float = 0.0


def read_written(pid: int, proc: str = PROC) -> tuple[int, ...]:
    """The sizes of the files that the stdout and the stderr of a process are.

    0 for what is no file, or one that this process writes into as well.
    """
    return tuple(_written(pid, fd, proc) for fd in (1, 2))


def read_uses(pids: Collection[int], proc: str = PROC) -> dict[int, Hashable]:
    """What processes do, each with all that it has started, as the kernel tells it.

    That changes when one of them calls something else in the system, or has used a tenth of a
    second of a processor. Those that are gone are left out.
    """
    below = children_by_parent(read_table(proc))
    uses = {pid: _read_use(_tree(pid, below), proc) for pid in pids}
    return {pid: use for pid, use in uses.items() if use is not None}


def read_processor_times(pids: Collection[int], proc: str = PROC) -> dict[int, ProcessorTime]:
    """The processor time of each process; those that are gone are left out."""
    below = children_by_parent(read_table(proc))
    times = {pid: _read_processor_time(_tree(pid, below), proc) for pid in pids}
    return {pid: time for pid, time in times.items() if time is not None}


def read_parents(pids: Collection[int], proc: str = PROC) -> dict[int, dict[int, int]]:
    """The parents of all processes below each of these, by process, parents before children."""
    below = children_by_parent(read_table(proc))
    parents = {child: pid for pid, children in below.items() for child in children}
    return {pid: {child: parents[child] for child in _tree(pid, below)[1:]} for pid in pids}


def read_use(pid: int, proc: str = PROC) -> Hashable:
    """The processor time of a process, and how often its threads were given a processor.

    That changes whenever one of them runs, if only for a moment. None if the process is gone.
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
    """Whether a process has a GPU open; False if that may not be read."""
    return any(target.startswith(_GPUS) for target in read_fds(pid, proc).values())


def _read_processor_time(pids: Sequence[int], proc: str) -> ProcessorTime | None:
    main, *children = pids
    thread = f"{main}/task/{main}"
    own = _read_ticks(thread, proc)
    if own is None:
        return None
    # Not every kernel has it. A thread on a busy machine, or of a container with a limit, waits.
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
    """User and system time, and both of children that have ended."""
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
        # Who may not read the one may read the other.
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
    """Whether it is also this process's: what is said of a hang, and by others, is no movement."""
    try:
        return os.path.samestat(found, os.fstat(fd))
    except OSError:
        return False
