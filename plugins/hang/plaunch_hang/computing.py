"""Which workers compute although they stay on one line, decided from their processor time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from plaunch_hang.process import read_processor_times, uses_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from plaunch_hang.process import ProcessorTime

_SHARE = 0.1  # of the time, or of one processor, from which on a process computes
_MOST_SYSTEM = 0.1  # of the processor time of a main thread that computes


class _Start(NamedTuple):
    """Where a span begins."""

    now: float
    time: ProcessorTime


class ComputeWatch:
    """The workers that may hang, from look to look.

    Args:
        read: reads the processor times of processes.
        uses_gpu: whether a process uses a GPU.
        clock: seconds that never go back.
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

    def look(self, spans: Mapping[int, float], threaded: Collection[int] = ()) -> set[int]:
        """Take the next look, and find the processes that have computed since the first one.

        Args:
            spans: the processes, each with the seconds that must pass since its first look.
            threaded: those of which all threads count, and not only the main thread.
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
        # A thread that computes on a busy machine waits for the processor rather than sleeps.
        could_run = passed - (now.waited - before.waited)
        if user + system < _SHARE * could_run:
            return False
        # A thread that polls makes system calls all the time.
        if system > _MOST_SYSTEM * (user + system):
            return False
        # CUDA waits for a GPU in a loop without system calls.
        return not self._uses_gpu(pid)
