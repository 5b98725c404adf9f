"""Watches what the kernel does to workers: it suspends, freezes, never wakes or kills them.

`HeldProcesses` records since when processes cannot run, `UninterruptibleWatch` finds workers that
sleep uninterruptibly, and `OutOfMemoryCounter` notices kills for lack of memory.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from plaunch.durations import PATIENCE
from plaunch.process.cgroups import group_paths
from plaunch.process.proc import PROC, find_field, read_name, read_proc, read_state

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_PERIOD = 5.0  # seconds between two samples of `sample_if_due`


class Held(NamedTuple):
    """Why a process cannot run.

    Args:
        how: in words, such as `suspended`; see `describe_hold`.
        since: when this was seen first, in seconds since the epoch.
        pid: the process.
    """

    how: str
    since: float
    pid: int

    def __str__(self) -> str:
        return f"{self.how} since {time.strftime('%H:%M:%S', time.localtime(self.since))}"


class HeldProcesses:
    """Records since when processes are held, which the kernel does not.

    Thread-safe.

    Args:
        describe: what holds a process; by default `describe_hold`.
        clock: seconds that never go back.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        *,
        describe: Callable[[int], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._describe = describe_hold if describe is None else describe
        self._clock = clock
        self._wall_clock = wall_clock
        self._sampled_at = clock()
        self._held: dict[int, Held] = {}  # by process
        self._lock = threading.Lock()

    def sample_if_due(self, pids: Collection[int]) -> None:
        """Sample these processes if five seconds have passed; the agent's loop calls it."""
        now = self._clock()
        if now - self._sampled_at >= _PERIOD:
            self._sampled_at = now
            self.sample(pids)

    def sample(self, pids: Collection[int]) -> dict[int, Held]:
        """Return what holds these processes now, by process id; those that may run are missing."""
        with self._lock:
            for pid in pids:
                how, known = self._describe(pid), self._held.pop(pid, None)
                if how and (known is None or known.how != how):
                    known = Held(how, self._wall_clock(), pid)
                if how and known is not None:
                    self._held[pid] = known
            return {pid: self._held[pid] for pid in pids if pid in self._held}


def describe_hold(pid: int, proc: str = PROC, root: str = "") -> str:
    """Describe what holds a process, in words such as `suspended`; empty if it may run.

    A process is held if a signal has suspended it, a debugger or tracer has stopped it, or its
    control group is frozen. A traced process that runs is not held.

    Args:
        pid: the process.
        proc: the folder of processes.
        root: the root of the file system, for control groups.
    """
    status = read_proc(f"{pid}/status", proc)
    state = find_field(status, "State")[:1]
    if state == "T":
        return "suspended"
    if state == "t":
        tracer = find_field(status, "TracerPid")
        if tracer in ("", "0"):  # it is in another container
            return "traced by a debugger"
        return f"traced by {read_name(tracer, proc) or 'a debugger'} (pid {tracer})"
    return "frozen by its control group" if status and _is_frozen(pid, proc, root) else ""


def _is_frozen(pid: int, proc: str, root: str) -> bool:
    groups = read_proc(f"{pid}/cgroup", proc).decode(errors="replace")
    # A frozen group freezes all below it. "frozen 1" is of version 2, "FROZEN" of version 1.
    for path in group_paths(groups, "freezer", "cgroup.events", "freezer.state"):
        text = read_proc(path, root)
        if text and (b"frozen 1" in text.splitlines() or text.strip() == b"FROZEN"):
            return True
    return False


TIMEOUT_VARIABLE = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"

_LONGEST_PERIOD = 1.0  # seconds between two samples
_SAMPLES_PER_TIMEOUT = 4


class UninterruptibleWatch:
    """Samples whether a worker has been in state D all the time.

    Only the worker itself is sampled, not its children. Every process is in state D briefly, so a
    worker counts as stuck only if all samples during the timeout find it there.

    Args:
        timeout: seconds of uninterruptible sleep after which a worker counts as stuck.
        find_state: the state letter of a process; by default `read_state`.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        timeout: float,
        *,
        find_state: Callable[[int], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.timeout = timeout
        self._find_state = read_state if find_state is None else find_state
        self._clock = clock
        self._period = min(timeout / _SAMPLES_PER_TIMEOUT, _LONGEST_PERIOD)
        self._sampled_at = -math.inf
        self._since: dict[int, float] = {}

    def find_stuck(self, pids: Mapping[int, int]) -> dict[int, float]:
        """Find the local ranks that are stuck, and for how many seconds.

        Call it often; most calls do nothing.

        Args:
            pids: the process ids of the workers that have not ended, by local rank.
        """
        now = self._clock()
        if now - self._sampled_at < self._period:
            return {}
        self._sampled_at = now
        asleep = [pid for pid in pids.values() if self._find_state(pid) == "D"]
        self._since = {pid: self._since.get(pid, now) for pid in asleep}
        return {
            rank: now - self._since[pid]
            for rank, pid in pids.items()
            if pid in self._since and now - self._since[pid] >= self.timeout
        }


def uninterruptible_timeout_of(environ: Mapping[str, str]) -> float:
    """Return the seconds in `TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT`; 0 means no limit.

    A negative number and an empty text mean no limit as well, as in torchrun.

    Raises:
        UsageError: the variable is not a number.
    """
    text = environ.get(TIMEOUT_VARIABLE, "").strip()
    if not text:
        return 0.0
    seconds = PATIENCE.read(text.removeprefix("-"), f"variable {TIMEOUT_VARIABLE}")
    return 0.0 if text.startswith("-") or math.isinf(seconds) else seconds


class OutOfMemoryCounter:
    """Counts how often processes near this one were killed for lack of memory.

    The counter is that of this process's control group (versions 2 and 1), in which its workers are
    unless they were moved, or of the nearest group above it that counts; otherwise that of the
    system. It does not show which process was killed, so ask only about a worker that got a
    SIGKILL from outside.

    Args:
        root: the root of the file system.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._path, self._count = self._find()
        self._has_moved = False

    def has_killed(self) -> bool:
        """Whether the counter has increased since the watch was created."""
        if self._path and not self._has_moved:
            before, self._count = self._count, self._read_counter(self._path)
            if before is not None and self._count is not None:
                self._has_moved = self._count > before
        return self._has_moved

    def _find(self) -> tuple[str, int | None]:
        groups = self._read("proc/self/cgroup")
        paths = group_paths(groups, "memory", "memory.events", "memory.oom_control")
        for path in (*paths, "proc/vmstat"):
            count = self._read_counter(path)
            if count is not None:
                return path, count
        return "", None

    def _read_counter(self, path: str) -> int | None:
        for line in self._read(path).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdecimal():
                return int(value)
        return None

    def _read(self, path: str) -> str:
        return read_proc(path, self._root).decode(errors="replace")
