"""The stop of one start of workers, in steps, from the first signal to the last descriptor.

No step waits. The caller waits between two steps, and may handle other events meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING

from plaunch.errors import UnkillableWorkerError
from plaunch.process.proc import describe_process, may_signal, read_state
from plaunch.process.stopping.stop_sequence import KILL_WAIT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from plaunch.process.children import ExitPoller
    from plaunch.process.failure import ProcessFailure
    from plaunch.process.proc import Process
    from plaunch.process.stopping.job import Job
    from plaunch.process.stopping.stop_sequence import StopSequence
    from plaunch.process.streams import LastOutput

_log = logging.getLogger("plaunch")

_SWEEP_PAUSE = 0.005  # seconds between two passes of a sweep
_POLL = 0.02  # seconds between two polls of workers without pidfds
_WOKEN = 1.0  # seconds between two checks of the output thread, which also wakes the poller


class Stop:
    """A stop in progress.

    Call `step` until it returns None. It returns the seconds until the next step is due; call it
    earlier after the exit of a worker, after `escalate`, and whenever the poller wakes.

    The stages: stop the workers; sweep up orphans that came late; pass on the output, for which a
    slow console may take long; release everything.

    Args:
        sequence: stops the workers; None to spare their orphans.
        job: finds and sweeps orphans.
        poller: what the caller waits with between two steps.
        output: wakes the poller when it has been passed on.
        find_live: records exits, and returns the local ranks that run.
        release: releases everything. It gets the processes that survived SIGKILL, by local rank,
            and the orphans that did, and may raise.
        lock: held during a step, so that two threads may take steps.
    """

    def __init__(
        self,
        *,
        sequence: StopSequence | None,
        job: Job,
        poller: ExitPoller,
        output: LastOutput,
        find_live: Callable[[], Collection[int]],
        release: Callable[[dict[int, list[int]], list[int]], None],
        lock: AbstractContextManager[object],
    ) -> None:
        self._sequence = sequence
        self._job = job
        self._poller = poller
        self._output = output
        self._find_live = find_live
        self._release = release
        self._lock = lock
        self._is_begun = False
        self._is_clear = False  # whether the sequence has found that there is nothing to sweep
        self._stuck: dict[int, list[int]] = {}
        self._orphans: list[int] = []
        self._sweep: Sweep | None = None
        self._stages: deque[Callable[[], float | None]] = deque()
        if sequence is not None:
            self._stages += [self._stop_workers, self._sweep_up]
        self._stages += [self._pass_output_on, self._release_all]

    def run(self) -> None:
        """Take all steps, and wait with the poller between them.

        Raises:
            UnkillableWorkerError: as `step`.
        """
        try:
            self._take_steps()
        except UnkillableWorkerError:
            raise  # it is over
        except BaseException:
            # Whatever interrupts a stop (KeyboardInterrupt above all) must leave no worker.
            try:
                self.escalate()
                self._take_steps()
            finally:
                if self._stages:
                    self._release_all()
            raise

    def _take_steps(self) -> None:
        while (delay := self.step()) is not None:
            self._poller.wait(delay)

    def step(self) -> float | None:
        """Do what is due; return the seconds until the next step, or None at the end.

        Raises:
            UnkillableWorkerError: the stop is over, but a process survived SIGKILL.
        """
        with self._lock:
            while self._stages:
                delay = self._stages[0]()
                if delay is not None:
                    return delay
                if self._stages:
                    self._stages.popleft()
            return None

    def escalate(self) -> None:
        """Skip the grace and the wait for a slow console; may be called in a signal handler."""
        if self._sequence is not None:
            self._sequence.escalate()
        self._output.escalate()

    def _stop_workers(self) -> float | None:
        assert self._sequence is not None  # noqa: S101 - a stage only with a sequence
        is_first, self._is_begun = not self._is_begun, True
        if not is_first:  # at first, what is known of the job is recent
            self._job.refresh()
        live = self._find_live()
        delay = self._sequence.step(live)
        if is_first and live and self._job.inherits_orphans():
            # After the signals: it takes long on a machine with many processes.
            self._job.scan()
        self._job.finish_kill()
        if delay is None:
            self._stuck = dict(self._sequence.stuck)
            self._is_clear = not (live or self._stuck) and self._job.is_clear()
            return None
        return min(delay, _POLL) if self._poller.fileno() is None else delay

    def _sweep_up(self) -> float | None:
        if self._is_clear:
            return None
        if self._sweep is None:
            given_up = {pid for pids in self._stuck.values() for pid in pids}
            self._sweep = Sweep(self._job, given_up)
        self._find_live()  # or the exit that woke the poller would wake it again
        delay = self._sweep.step()
        if delay is None:
            self._orphans = [process.pid for process in self._sweep.left]
        return delay

    def _pass_output_on(self) -> float | None:
        if not self._output.is_begun:
            self._output.begin()
        if not (self._output.is_over or self._output.is_stuck()):
            self._find_live()  # as above
            return _WOKEN
        self._output.end()
        return None

    def _release_all(self) -> None:
        self._stages.clear()
        self._release(self._stuck, self._orphans)


class Sweep:
    """Kills all that is left when every worker has ended or was given up.

    The stop sequence has ended the processes that it found. This is for those that came later, and
    for orphans of unknown workers. It ends when a pass finds nothing: then an adopter has no orphan
    among its children, dead or alive, and elsewhere no process has come since all were read.

    Args:
        job: finds, kills and reaps them.
        given_up: the ids of processes that have survived SIGKILL.
        patience: seconds to wait for processes to end after SIGKILL.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        job: Job,
        given_up: Collection[int],
        patience: float = KILL_WAIT,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.left: list[Process] = []  # the processes that survive
        self._job = job
        self._given_up = given_up
        self._clock = clock
        self._deadline = clock() + patience
        self._has_logged = False

    def step(self) -> float | None:
        """Kill what is found; return the seconds until the next step, or None at the end."""
        found, refused = self._job.kill_orphans(self._given_up)
        has_reaped = self._job.reap_orphans()
        if not (found or has_reaped) and self._job.is_sure():
            return None
        if found and not self._has_logged:
            self._has_logged = True
            _log.info("ending orphans: pids %s", [process.pid for process in found])
        is_refused = bool(found) and len(refused) == len(found)
        if is_refused or self._clock() > self._deadline:
            self.left = found
            return None
        return _SWEEP_PAUSE


def describe_unkillable(
    name: str,
    stuck: Mapping[int, Sequence[int]],
    orphans: Sequence[int],
    failures: Mapping[int, ProcessFailure],
) -> str:
    """Name the processes that are still there after a stop, and say why if the system shows it.

    Args:
        name: what the workers are.
        stuck: process ids by the local rank that they belong to.
        orphans: process ids of unknown workers.
        failures: the failures of workers; the first is the cause of the stop.
    """
    by_owner = [(f"local rank {rank}", pids) for rank, pids in sorted(stuck.items())]
    if orphans:
        by_owner.append(("orphans", orphans))
    named = "; ".join(
        f"{owner}: {', '.join(describe_process(pid) for pid in pids)}" for owner, pids in by_owner
    )
    all_pids = [pid for _, pids in by_owner for pid in pids]
    refused = [pid for pid in all_pids if not may_signal(pid)]
    what = "cannot be ended" if len(refused) == len(all_pids) else "outlive SIGKILL"
    sentences = [f"processes of {name!r} {what}: {named}."]
    if refused:
        pids = ", ".join(map(str, refused))
        sentences.append(
            f"This user may not send signals to pid {pids}, which runs as another user (sudo, "
            "su); the worker must end such processes itself."
        )
    if any(read_state(pid) == "D" for pid in all_pids):
        sentences.append(
            "A process in state D sleeps uninterruptibly in the kernel; this host probably needs a "
            "restart."
        )
    for rank, failure in [*failures.items()][:1]:
        sentences.append(
            f"They were stopped because local rank {rank} (pid {failure.pid}) failed: "
            f"{failure.describe_exit()}."
        )
    return " ".join(sentences)
