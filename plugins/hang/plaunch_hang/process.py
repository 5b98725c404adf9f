"""What /proc tells of a worker beside its stack: whether it can move, what it wrote and used."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from plaunch.process import read_table

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping

PROC = "/proc"
_MOST = 1 << 13  # bytes of a file
_PARTS = 10  # of a second that a processor is used for: what is less is no movement
_TICKS = os.sysconf("SC_CLK_TCK")


class ProcessState(NamedTuple):
    """What may be known of a process without any right.

    Args:
        is_held: whether it is suspended, or traced, as by a debugger.
        written: the sizes of the files that its stdout and stderr are; 0 for what is no file, or
            one that this process writes into as well.
    """

    is_held: bool
    written: tuple[int, ...]


def read_state(pid: int, proc: str = PROC) -> ProcessState | None:
    """The state of a process; None if it is gone."""
    status = _read(f"{proc}/{pid}/status")
    if not status:
        return None
    letter = status.partition(b"\nState:")[2].split(None, 1)[:1]
    tracer = status.partition(b"\nTracerPid:")[2].split(None, 1)[:1]
    is_held = letter in ([b"T"], [b"t"]) or tracer not in ([], [b"0"])
    return ProcessState(is_held, tuple(_written(pid, fd, proc) for fd in (1, 2)))


def read_uses(pids: Collection[int], proc: str = PROC) -> dict[int, Hashable]:
    """What processes do, each with all that it has started, as the kernel tells it.

    That changes when one of them calls something else in the system, or has used a tenth of a
    second of a processor. Those that are gone are left out.
    """
    below: dict[int, list[int]] = {}
    for process in read_table(proc).values():
        below.setdefault(process.ppid, []).append(process.pid)
    uses = {pid: _read_use(_tree(pid, below), proc) for pid in pids}
    return {pid: use for pid, use in uses.items() if use is not None}


def _tree(pid: int, below: Mapping[int, list[int]]) -> list[int]:
    found = [pid]
    for one in found:
        found += sorted(below.get(one, ()))
    return found


def _read_use(pids: Collection[int], proc: str) -> Hashable:
    seconds, calls = 0.0, []
    for pid in pids:
        fields = _read(f"{proc}/{pid}/stat").rpartition(b")")[2].split()
        if len(fields) < 13:
            continue
        seconds += (int(fields[11]) + int(fields[12])) / _TICKS
        # Who may not read the one may read the other.
        call = _read(f"{proc}/{pid}/syscall").partition(b" ")[0]
        calls.append((pid, call or _read(f"{proc}/{pid}/wchan")))
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


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _MOST)
    except OSError:
        return b""
    finally:
        os.close(fd)
