"""Workers that compute although they stay on one line, found by their CPU time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from plaunch_hang.process import read_processor_times, uses_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from plaunch_hang.process import ProcessorTime

_SHARE = 0.1  # a process that uses this fraction of a CPU is computing
_MOST_SYSTEM = 0.1  # the greatest fraction of system time of a computing thread


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
