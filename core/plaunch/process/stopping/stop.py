"""The stop of one start of workers, from the first signal to the last descriptor, without waiting.

Whoever drives it waits between two steps, and may listen to whatever else happens meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from plaunch.process.stopping.stop_sequence import KILL_WAIT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from plaunch.process.stopping.job import Job
    from plaunch.process.stopping.reaping.sweep import Sweep
    from plaunch.process.stopping.stop_sequence import StopSequence

_LONGEST_LOOK = 0.02  # seconds between two looks at workers whose end nothing tells
_WOKEN = 1.0  # seconds after which what wakes us is looked at all the same


class Stop:
    """A stop in progress.

    Call `step` until it says None; it says for how long nothing is due. Call it again then, or
    earlier: after an end of a worker, after `escalate`, or when it has asked for it with `wake`.

    Its stages: the workers are stopped; what nobody has found yet is swept; the output is passed
    on, which a slow console may make long; everything is released.

    Args:
        sequence: stops the workers; None if what they left behind is spared.
        job: finds and sweeps what is left.
        look: notes the ends of workers, and says which local ranks are alive.
        finish_output: passes on all output; it may take long, and runs on a thread of its own
            if `has_output`.
        hurry_output: lets `finish_output` not wait for a slow console.
        has_output: whether there is any.
        release: releases everything, given the processes that outlive SIGKILL, by local rank, and
            the others; it may raise.
        wake: lets the driver's wait end; may be called from another thread, also after `release`.
        is_told: whether the end of a worker wakes the driver.
    """

    def __init__(
        self,
        *,
        sequence: StopSequence | None,
        job: Job,
        look: Callable[[], Collection[int]],
        finish_output: Callable[[], None],
        hurry_output: Callable[[], None],
        has_output: bool,
        release: Callable[[dict[int, list[int]], list[int]], None],
        wake: Callable[[], None],
        is_told: Callable[[], bool],
    ) -> None:
        self._sequence = sequence
        self._job = job
        self._look = look
        self._finish_output = finish_output
        self._hurry_output = hurry_output
        self._has_output = has_output
        self._release = release
        self._wake = wake
        self._is_told = is_told
        self._is_begun = False
        self._is_clear = False  # the sequence itself has seen that there is nothing to sweep
        self._stuck: dict[int, list[int]] = {}
        self._left: list[int] = []
        self._sweep: Sweep | None = None
        self._output: _Finishing | None = None
        self._stages = [self._release_all, self._pass_output_on]
        if sequence is not None:
            self._stages += [self._sweep_up, self._stop_workers]

    def step(self) -> float | None:
        """Do what is due and return the seconds until more is; None when all is over.

        Raises:
            UnkillableWorkerError: all is over, but something outlives even SIGKILL.
        """
        while self._stages:
            delay = self._stages[-1]()
            if delay is not None:
                return delay
            if self._stages:
                self._stages.pop()
        return None

    def escalate(self) -> None:
        """Skip the grace, and do not wait for a slow console; may be called by a signal handler."""
        if self._sequence is not None:
            self._sequence.escalate()
        self._hurry_output()

    def _stop_workers(self) -> float | None:
        assert self._sequence is not None  # noqa: S101 - or this is no stage
        if self._is_begun:  # or `note` has looked a moment ago
            self._job.refresh()
        self._is_begun = True
        live = self._look()
        delay = self._sequence.step(live)
        self._job.finish_kill()
        if delay is None:
            self._stuck = dict(self._sequence.stuck)
            self._is_clear = not (live or self._stuck) and self._job.is_clear()
            return None
        return delay if self._is_told() else min(delay, _LONGEST_LOOK)

    def _sweep_up(self) -> float | None:
        if self._is_clear:
            return None
        if self._sweep is None:
            given_up = {pid for pids in self._stuck.values() for pid in pids}
            self._sweep = self._job.begin_sweep(given_up, KILL_WAIT)
        self._look()  # what has woken us is not to do so again
        delay = self._sweep.step()
        if delay is None:
            self._left = [process.pid for process in self._sweep.left]
        return delay

    def _pass_output_on(self) -> float | None:
        if self._output is None:
            self._output = _Finishing(self._finish_output, self._wake)
            self._output.begin(is_long=self._has_output)
        if not self._output.is_over:
            self._look()  # what else has woken us is not to do so again
            return _WOKEN
        self._output.end()
        return None

    def _release_all(self) -> None:
        self._stages.clear()
        self._release(self._stuck, self._left)

    def give_up(self) -> None:
        """Release everything at once, whatever the stage; nothing happens if it is over."""
        if self._stages:
            self._release_all()


class _Finishing:
    """Passes the output on, on a thread if that may take long, and wakes whoever waits for it."""

    def __init__(self, finish: Callable[[], None], wake: Callable[[], None]) -> None:
        self.is_over = False
        self._error: BaseException | None = None
        self._finish = finish
        self._wake = wake
        self._thread: threading.Thread | None = None

    def begin(self, *, is_long: bool) -> None:
        if is_long:
            thread = threading.Thread(target=self._run, name="plaunch-output", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: then signals have to wait
                thread.start()
                self._thread = thread
        if self._thread is None:
            self._run()

    def end(self) -> None:
        """Wait for the thread, which has nothing left to do, and raise what has gone wrong."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._finish()
        except BaseException as error:  # noqa: BLE001 - raised by `end`, on the stop's own thread
            self._error = error
        self.is_over = True
        self._wake()
