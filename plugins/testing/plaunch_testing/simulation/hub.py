"""A virtual clock, and the tasks that run under it, one at a time, in an order made from a seed.

A task is a greenlet that stands for a thread. It runs until it waits; then the hub picks another
task that is ready, at random. If none is ready, the clock jumps to the next deadline. Equal seeds
give equal runs, as nothing else decides: real clocks, threads and sockets are not used.
"""

from __future__ import annotations

import heapq
import random
from typing import TYPE_CHECKING

import greenlet

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EPOCH", "Hub", "SimulatedHost", "SimulatedProcess", "SimulatedTask", "SimulationError"]

EPOCH = 1_800_000_000.0  # what a correct wall clock shows when a run begins
# Seconds. The clock moves by at least this much for each wait with a timeout. Without it, code that
# waits for what floating point has left of a deadline would wait forever at the same time.
QUANTUM = 1e-6
_MAX_STEPS = 1_000_000  # of one run; a job of three nodes takes some thousands


class SimulationError(Exception):
    """The simulator cannot continue: code waits outside of a task, or never lets time pass."""


class Ended(greenlet.GreenletExit):  # type: ignore[misc]  # it has no types
    """Unwinds a task when its run is over."""


class SimulatedHost:
    """A machine: its clocks, and whether it runs.

    Args:
        name: its hostname.
        rate: how fast its monotonic clock runs; 1.0001 gains a second in three hours.
        offset: seconds by which its wall clock is wrong; may be changed.
        uptime: what its monotonic clock shows when the run begins, in seconds.
        stop_time: seconds that its workers need to end after a stop signal.
    """

    def __init__(
        self,
        name: str,
        *,
        rate: float = 1.0,
        offset: float = 0.0,
        uptime: float = 0.0,
        stop_time: float = 0.2,
    ) -> None:
        self.name = name
        self.rate = rate
        self.offset = offset
        self.uptime = uptime
        self.stop_time = stop_time
        self.is_up = True
        self.is_healthy = True  # as its health checks find it


class SimulatedProcess:
    """A process of a host: tasks, and what the system keeps for it.

    Args:
        host: where it runs.
        pid: its process id.
    """

    def __init__(self, host: SimulatedHost, pid: int) -> None:
        self.host = host
        self.pid = pid
        self.is_alive = True
        self.killed_at: float | None = None
        self.is_stopped = False  # by SIGSTOP, or as its host is suspended
        self.tasks: list[SimulatedTask] = []
        self._deferred: list[SimulatedTask] = []  # those that are ready while it is stopped

    @property
    def main(self) -> SimulatedTask:
        """Its first task, on which handlers of signals run."""
        return self.tasks[0]

    def defer(self, task: SimulatedTask) -> None:
        """Keep a task until the process continues."""
        self._deferred.append(task)

    def take_deferred(self) -> list[SimulatedTask]:
        """Return the tasks that have become ready while the process was stopped."""
        deferred, self._deferred = self._deferred, []
        return deferred


class SimulatedTask:
    """A thread of a process.

    Args:
        name: for the history.
        process: its process; None for tasks of the world itself, such as faults.
    """

    __slots__ = (
        "error",
        "greenlet",
        "interrupts",
        "is_done",
        "is_waiting",
        "joiners",
        "name",
        "process",
        "thread",
        "wait_number",
        "waiters",
        "was_woken",
    )

    def __init__(self, name: str, process: SimulatedProcess | None) -> None:
        self.name = name
        self.process = process
        self.greenlet: greenlet.greenlet | None = None
        self.error: BaseException | None = None
        self.interrupts: list[Callable[[], None]] = []  # handlers of signals, to run next
        self.is_done = False
        self.is_waiting = False
        self.was_woken = False
        self.wait_number = 0  # of its present wait; deadlines of earlier ones are stale
        self.waiters: dict[SimulatedTask, None] | None = None  # among which it waits
        self.joiners: dict[SimulatedTask, None] = {}  # those that wait for its end
        self.thread: object = None  # what the code under test knows it as

    def has_left_wait(self, number: int) -> bool:
        """Whether the wait with this number is over."""
        return not self.is_waiting or self.wait_number != number


class Hub:
    """Runs tasks until all is over.

    There is one for each interpreter, since the code under test finds it through modules; `begin`
    prepares it for another run.

    Attributes:
        now: virtual seconds since the run began.
        current: the task that runs; None while the hub does.
        random: the source of all that is random in this run.
    """

    def __init__(self) -> None:
        self.current: SimulatedTask | None = None
        self.preemption = 0.0
        self._main = greenlet.getcurrent()
        self.begin(0)

    def begin(self, seed: int, *, preemption: float = 0.0) -> None:
        """Begin another run.

        Args:
            seed: of its random numbers.
            preemption: the probability that a task which takes a lock lets others run before.
        """
        self.now = 0.0
        self.steps = 0
        self.random = random.Random(seed)
        self.preemption = preemption
        self.errors: list[tuple[SimulatedTask, BaseException]] = []
        self.is_over = False
        self._ready: list[SimulatedTask] = []
        self._tasks: list[SimulatedTask] = []
        self._ended = 0  # tasks
        # (when, a number that makes the order definite, a task or a function, number of its wait)
        self._deadlines: list[tuple[float, int, SimulatedTask | Callable[[], object], int]] = []
        self._serial = 0

    # --- called by tasks --------------------------------------------------------------------------

    def spawn(
        self, function: Callable[[], object], name: str, process: SimulatedProcess | None = None
    ) -> SimulatedTask:
        """Create a task, which is ready at once."""
        task = SimulatedTask(name, process)
        task.greenlet = greenlet.greenlet(lambda: self._run_task(task, function), self._main)
        self._tasks.append(task)
        if process is not None:
            process.tasks.append(task)
        self._make_ready(task)
        return task

    def wait(self, waiters: dict[SimulatedTask, None] | None, timeout: float | None = None) -> bool:
        """Wait until `wake` is called for this task; False if `timeout` seconds pass first.

        Args:
            waiters: the task is in it while it waits; None if something else wakes it.
            timeout: seconds of the clock of the task's host; None for no limit.
        """
        task = self.current
        if self.is_over:
            raise Ended
        if task is None:
            raise SimulationError("code that waits was called outside of a task")
        deadline = None
        if timeout is not None:
            rate = 1.0 if task.process is None else task.process.host.rate
            deadline = self.now + max(timeout / rate, QUANTUM)
        while True:
            task.is_waiting, task.was_woken = True, False
            task.waiters = waiters
            if waiters is not None:
                waiters[task] = None
            task.wait_number += 1
            if deadline is not None:
                self._serial += 1
                heapq.heappush(self._deadlines, (deadline, self._serial, task, task.wait_number))
            self._main.switch()
            if self.is_over:
                raise Ended
            if not task.interrupts:
                return task.was_woken
            handlers, task.interrupts = task.interrupts, []
            for handler in handlers:
                handler()
            if task.was_woken or (deadline is not None and deadline <= self.now):
                return task.was_woken

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.wait(None, max(seconds, 0.0))

    def let_others_run(self) -> None:
        """Let other tasks run first, as far as they are ready."""
        task = self.current
        if task is None or self.is_over:
            return
        self._make_ready(task)
        self._main.switch()
        if self.is_over:
            raise Ended

    # --- called by tasks and by the world ---------------------------------------------------------

    def wake(self, task: SimulatedTask) -> None:
        """End the wait of a task; nothing happens if it does not wait."""
        if task.is_waiting:
            task.was_woken = True
            self._end_wait(task)

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call a function of the world after some time; it must not wait."""
        self._serial += 1
        heapq.heappush(self._deadlines, (self.now + seconds, self._serial, function, -1))

    def wake_all(self, waiters: dict[SimulatedTask, None]) -> None:
        """End the waits of all tasks of `waiters`."""
        for task in list(waiters):
            self.wake(task)

    def interrupt(self, task: SimulatedTask, handler: Callable[[], None]) -> None:
        """Run a handler of a signal on a task, as soon as it runs; a wait goes on afterwards."""
        task.interrupts.append(handler)
        if task.is_waiting:
            self._end_wait(task)

    def stop(self, process: SimulatedProcess) -> None:
        """Stop a process, as SIGSTOP does; its clock goes on."""
        process.is_stopped = True

    def resume(self, process: SimulatedProcess) -> None:
        """Let a stopped process continue."""
        process.is_stopped = False
        for task in process.take_deferred():
            self._make_ready(task)

    def kill(self, process: SimulatedProcess) -> None:
        """End a process, as SIGKILL does: nothing of it runs again."""
        process.is_alive = False
        process.killed_at = self.now
        for task in process.tasks:
            if task.waiters is not None:
                task.waiters.pop(task, None)

    def joins(self, task: SimulatedTask, timeout: float | None) -> bool:
        """Wait for the end of a task; whether it has ended."""
        if not task.is_done:
            self.wait(task.joiners, timeout)
        return task.is_done

    # --- the run ----------------------------------------------------------------------------------

    def run(self, is_finished: Callable[[], bool], limit: float) -> bool:
        """Run tasks until `is_finished`, which is asked whenever a task has ended.

        Returns:
            False if no task can run any more, or `limit` virtual seconds have passed.

        Raises:
            SimulationError: tasks run on and on.
        """
        self._main = greenlet.getcurrent()
        ready, deadlines = self._ready, self._deadlines
        seen = -1
        while True:
            if self._ended != seen:
                if is_finished():
                    return True
                seen = self._ended
            if ready:
                index = int(self.random.random() * len(ready))
                task, ready[index] = ready[index], ready[-1]
                ready.pop()
                process = task.process
                if process is not None and (process.is_stopped or not process.is_alive):
                    if process.is_alive:
                        process.defer(task)
                    continue
                self._step(task)
            elif deadlines:
                due, _, what, number = heapq.heappop(deadlines)
                if isinstance(what, SimulatedTask) and what.has_left_wait(number):
                    continue
                if due > limit:
                    self.now = limit
                    return False
                self.now = max(self.now, due)
                if isinstance(what, SimulatedTask):
                    self._end_wait(what)
                else:
                    what()
            else:
                return False

    def end(self) -> None:
        """End the run: unwind all tasks; what they still call in the simulator ends them."""
        self.is_over = True
        self._main = greenlet.getcurrent()
        for task in self._tasks:
            if task.greenlet is not None and not task.greenlet.dead and task.greenlet:
                task.greenlet.throw(Ended)
        self._tasks.clear()

    def live_tasks(self, process: SimulatedProcess) -> list[SimulatedTask]:
        """Return the tasks of a process that have not ended."""
        return [task for task in process.tasks if not task.is_done]

    def _step(self, task: SimulatedTask) -> None:
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise SimulationError(f"tasks have run {_MAX_STEPS} times; {task.name} runs on and on")
        self.current = task
        assert task.greenlet is not None
        task.greenlet.switch()
        self.current = None

    def _run_task(self, task: SimulatedTask, function: Callable[[], object]) -> None:
        try:
            if not self.is_over:
                function()
        except Ended:
            pass
        except BaseException as error:  # noqa: BLE001 - findings
            task.error = error
            self.errors.append((task, error))
        finally:
            task.is_done = True
            self._ended += 1
            self.wake_all(task.joiners)

    def _end_wait(self, task: SimulatedTask) -> None:
        task.is_waiting = False
        if task.waiters is not None:
            task.waiters.pop(task, None)
            task.waiters = None
        self._make_ready(task)

    def _make_ready(self, task: SimulatedTask) -> None:
        process = task.process
        if process is None or (process.is_alive and not process.is_stopped):
            self._ready.append(task)
        elif process.is_alive:
            process.defer(task)
