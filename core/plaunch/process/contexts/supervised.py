"""The half that plaunch's own two kinds of context have in common.

Starting workers one after the other with their streams, noticing their ends, stopping them, and
putting the result together. A kind says how one worker is started and what it sends back.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from plaunch.errors import PlaunchError, UnkillableWorkerError, UsageError, WorkerStartError
from plaunch.process.contexts.context import SHUTDOWN_TIMEOUT, PContext
from plaunch.process.contexts.exits import Exits
from plaunch.process.contexts.returns import Returns
from plaunch.process.kernel.descriptor_limit import descriptor_limit
from plaunch.process.kernel.handle import restore_sigchld
from plaunch.process.kernel.holds import HoldWatch
from plaunch.process.kernel.watch import ExitWatch
from plaunch.process.launcher_variables import inheritable
from plaunch.process.starting import popen_by
from plaunch.process.stopping.reaper import Reaper
from plaunch.process.stopping.reaping.job_tag import JOBS_VARIABLE
from plaunch.process.stopping.session import WorkerSession
from plaunch.process.stopping.stop import Stop
from plaunch.process.stopping.stop_sequence import StopSequence

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from plaunch.process.contexts.context import ProcessExit, RunProcsResult
    from plaunch.process.failures.failure import ProcessFailure
    from plaunch.process.kernel.handle import Popen, ProcessHandle
    from plaunch.process.starting import Starter
    from plaunch.process.stopping.job import Job
    from plaunch.process.stopping.stop_sequence import StopStep
    from plaunch.process.streams.api import Streams, Traffic
    from plaunch.process.streams.logs import LogsSpecs

_log = logging.getLogger("plaunch")

_LONGEST_WAIT = 1.0  # seconds; another thread may have closed what a thread waits for


class SupervisedContext(PContext):
    """A context whose workers plaunch starts and watches itself; any thread may close it.

    Args:
        reaper: ends the orphans of the workers. An agent, which starts workers again and again,
            gives its own, and closes it; else the context has one for itself.
        traffic: counts the output that passes through this process, over several starts. Its owner
            waits at the end until the console has shown everything; else `close` does.
        private_fds: descriptors of this process that a forked worker must not keep.
        returns: what the workers send back.
        starter: starts the processes of workers that are not forked from this one.

    All other arguments are those of `PContext`; by position, `numa_options` precedes the filters.
    """

    _has_forked = False  # whether workers are forked, and not programs of their own

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: Mapping[int, Any],
        envs: Mapping[int, Mapping[str, Any]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: object = None,
        *filters: Sequence[str] | None,
        reaper: Reaper | None = None,
        traffic: Traffic | None = None,
        private_fds: Sequence[int] = (),
        returns: Returns | None = None,
        starter: Starter | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs["numa_options"] = numa_options
        super().__init__(
            name, entrypoint, args, envs, logs_specs, log_line_prefixes, *filters, **kwargs
        )
        self._private_fds = tuple(private_fds)
        self._traffic = traffic
        self._reaper = Reaper() if reaper is None else reaper
        self._owns_reaper = reaper is None
        self._returns = Returns() if returns is None else returns
        self._exits = Exits(
            self.name, self.nprocs, self.error_files, self._log_files, self._returns
        )
        self._starter = starter
        self.started_by_starter: set[int] = set()  # local ranks
        self._abandoned: set[int] = set()
        self._job: Job | None = None
        self._watch: ExitWatch | None = None
        self._streams: Streams | None = None
        self._stop: Stop | None = None
        self._is_escalated = False
        self._lock = threading.RLock()  # held while the state of the workers is read or changed
        self._is_closed = False
        self._result: RunProcsResult | None = None
        # Called with each step of a stop, and with each end of a worker as it is seen and, if that
        # is one, its failure, whose last lines are not known by then. Neither may raise or block.
        self.on_stop_step: Callable[[StopStep], None] | None = None
        self.on_exit: Callable[[ProcessExit, ProcessFailure | None], None] | None = None
        self.holds = HoldWatch()  # of the workers

    @abc.abstractmethod
    def _start_worker(
        self, local_rank: int, stdout: int | None, stderr: int | None
    ) -> ProcessHandle:
        """Start one worker with these descriptors as its streams; None inherits the launcher's."""

    def pids(self) -> dict[int, int]:
        """The process ids of the workers by local rank, also of those that have ended."""
        return {rank: worker.pid for rank, worker in self._exits.workers.items()}

    def exit_fds(self) -> list[int] | None:
        """One descriptor that is readable when `wait(0)` has something to do.

        None where the kernel has no pidfds; the context must then be polled.
        """
        if self._is_closed:
            return []
        fd = None if self._watch is None else self._watch.fileno()
        return None if fd is None else [fd]

    def send_signal(self, local_rank: int, signum: signal.Signals) -> None:
        """Send a signal to one worker only; nothing happens if it has ended.

        Raises:
            PermissionError: it runs as another user.
        """
        self._exits.workers[local_rank].send_signal(signum)

    def take_exits(self) -> list[ProcessExit]:
        """The exits seen since the last call, in the order seen."""
        return self._exits.take()

    def escalate(self) -> None:
        """Skip the grace of the stop in progress, or of the one that will come."""
        self._is_escalated = True
        if self._stop is not None:
            self._stop.escalate()
        if self._watch is not None:
            self._watch.wake()

    def abandon(self, local_rank: int) -> None:
        """Do not wait for this worker when the others are stopped, or when they all are.

        `close` then raises `UnkillableWorkerError` if it is still there.
        """
        self._abandoned.add(local_rank)

    # --- what a subclass starts a worker with -------------------------------------------------

    def _environment(self, local_rank: int) -> dict[str, str]:
        """The whole environment of this worker."""
        return inheritable({**os.environ, **self.envs[local_rank], **self._tags(local_rank)})

    def _tags(self, local_rank: int) -> dict[str, str]:
        """The variable by which the processes of this worker are known."""
        _, job = self._begun()
        return {JOBS_VARIABLE: job.tags(local_rank)}

    def _popen(self, local_rank: int) -> Callable[..., Popen]:
        """What starts the program of this worker, from the arguments of `subprocess.Popen`."""
        binding = self._bindings.get(local_rank)
        return popen_by(self._starter, local_rank, binding, self.started_by_starter)

    def _fork_fds(self) -> tuple[int | None, list[int]]:
        """What a fork of this process must know of its descriptors.

        Returns:
            The one for `become_worker`, if there is a guard, and those that it must close.
        """
        watch, job = self._begun()
        guard_fd = job.guard_fd()
        starter = () if self._starter is None else self._starter.fds()
        fds = (*self._private_fds, *watch.own_fds(), *job.own_fds(), *starter)
        return guard_fd, [fd for fd in fds if fd != guard_fd]

    # --- start, look, stop ------------------------------------------------------------------------

    def _start(self) -> None:
        restore_sigchld()
        with self._held_signals():
            try:
                self._start_all()
            except PlaunchError:
                raise
            except (OSError, EOFError) as error:
                from plaunch.capacity import explain  # errors only

                is_one = self._streams is not None and len(self._exits.workers) < self.nprocs
                who = f"local rank {len(self._exits.workers)}" if is_one else "the workers"
                raise WorkerStartError(
                    f"cannot start {who} of {self.name!r}: {explain(error)}"
                ) from error

    def _start_all(self) -> None:
        # A temporary folder that nobody needs once the launcher is gone, if there is one.
        folder = getattr(self._logs_specs, "temporary_dir", None)
        self._watch = ExitWatch()
        self._exits.begin()
        self._returns.begin(self.nprocs, self._watch)
        self._job = self._reaper.begin(
            has_forked=self._has_forked,
            folder=folder if isinstance(folder, str) else None,
            watch=self._watch,
        )
        self._streams = self._open_streams(
            self._logs_dest,
            capture_stderr=os.environ.get("PLAUNCH_CAPTURE_STDERR", "1") != "0",
            keeps_daemons=self._reaper.keep_daemons,
            before=None if self._traffic is None else self._traffic.streams,
        )
        if self._starter is not None:
            self._starter.prepare({rank: self._environment(rank) for rank in range(self.nprocs)})
        for rank in range(self.nprocs):
            worker = self._start_worker(rank, *self._streams.child_fds(rank))
            self._exits.workers[rank] = worker
            descriptor_limit().give_back(worker.pid)
            self._job.started(rank, worker.pid)
            self._watch.add(rank, worker.pid, worker.has_ended, fd=worker.exit_fd())
        self._streams.start()
        if self._traffic is not None:
            self._traffic.follow(self._streams)

    def _start_tails(self) -> None:
        """Nothing to do: teed streams pass through the launcher."""

    def _idle(self, remaining: float | None, period: float) -> None:
        del period  # there is no need to look in between
        if self._watch is not None:
            self._watch.wait(_LONGEST_WAIT if remaining is None else min(remaining, _LONGEST_WAIT))

    def look(self) -> RunProcsResult | None:
        """The state of the workers, as known now; neither waits nor stops anything.

        Returns:
            None while all is well and some still run. Else the result so far: if workers have
            failed, others may be alive, and `begin_stop` is the next thing to do. It is complete
            when the stop is over.

        Raises:
            UsageError: the workers were not started.
        """
        watch, _ = self._begun()
        with self._lock:
            if not self._is_closed:
                with self._held_signals():
                    self._note_exits(watch)
                    if self._exits.live() and not self._exits.failures:
                        self._reaper.tend()
                        return None
            return self._conclude()

    def fail_stopped(self) -> None:
        """Count workers that were stopped as failed; see `RunProcsResult`. `wait` does it."""
        self._exits.fail_stopped()

    def begin_stop(self, death_sig: signal.Signals, timeout: float) -> Stop:
        """Begin to stop what runs, and to end the orphans; the caller drives the stop.

        Args:
            death_sig: the soft signal.
            timeout: seconds until SIGKILL.

        Returns:
            The stop, or the one that was begun; it is over at once if there is nothing to do.

        Raises:
            UsageError: the workers were not started.
        """
        with self._lock:
            if self._stop is None:
                self._stop = self._create_stop(death_sig, timeout)
            return self._stop

    def _create_stop(self, death_sig: signal.Signals, timeout: float) -> Stop:
        (watch, job), exits = self._begun(), self._exits
        self._note_exits(watch)
        exits.begin_stop()
        if exits.live() and not job.inherits_orphans():
            job.look_at_all()
        sequence = None
        # Who has succeeded may leave daemons behind, if the user says so.
        if not (self._reaper.keep_daemons and exits.are_successes() and not exits.stopped()):
            sequence = StopSequence(
                {
                    rank: WorkerSession(worker, rank, job, holds=self.holds)
                    for rank, worker in exits.workers.items()
                },
                name=self.name,
                death_sig=death_sig,
                grace=timeout,
                abandoned=self._abandoned,
                on_step=self.on_stop_step,
            )
        stop = Stop(
            sequence=sequence,
            job=job,
            watch=watch,
            streams=self._streams,
            shows_rest=self._traffic is None,
            look=self._look_at_ended,
            release=self._end_stop,
            lock=self._lock,
        )
        if self._is_escalated:
            stop.escalate()
        return stop

    def _poll(self) -> RunProcsResult | None:
        with self._lock:
            if self._result is None and self.look() is not None:
                try:
                    self.close()
                finally:
                    self.fail_stopped()
                    self._result = self._conclude()
            return self._result

    def _close(self, death_sig: signal.Signals, timeout: float = SHUTDOWN_TIMEOUT) -> None:
        with self._lock, self._held_signals():
            if self._is_closed or self._watch is None:
                return
            if self._job is None:
                self._release_all()
                return
            stop = self.begin_stop(death_sig, timeout)
            try:
                stop.run(self._watch.wait)
            except UnkillableWorkerError:
                raise  # it is over
            except BaseException:
                # Whatever interrupts a stop (KeyboardInterrupt above all) must leave no worker.
                try:
                    stop.escalate()
                    stop.run(self._watch.wait)
                finally:
                    stop.give_up()
                raise

    def _note_exits(self, watch: ExitWatch) -> None:
        """Note every end of a worker that has not been noted, in the order seen."""
        self._reaper.tend_guard()
        self._returns.receive()
        for rank in watch.ended():
            seen, failure = self._exits.note(rank)
            if self.on_exit is not None:
                self.on_exit(seen, failure)

    def _look_at_ended(self) -> list[int]:
        """Note the ends of workers, let the system forget them; which local ranks are alive."""
        if self._watch is not None:
            self._note_exits(self._watch)
        for rank in self._exits.seen:
            self._exits.workers[rank].reap()
        return self._exits.live()

    def _end_stop(self, stuck: dict[int, list[int]], orphans: list[int]) -> None:
        """Release everything when a stop is over, and say so if something is still there."""
        self._look_at_ended()
        self._release_all()
        if stuck or orphans:
            from plaunch.process.stopping.unkillable import describe_unkillable  # rare

            message = describe_unkillable(self.name, stuck, orphans, self._exits.failures)
            _log.error(message)
            raise UnkillableWorkerError(message)

    def _release_all(self) -> None:
        """Release everything, once the workers are gone or have turned out to be unkillable."""
        self._is_closed = True
        with contextlib.ExitStack() as stack:
            if self._logs_to_close is not None:
                stack.callback(self._logs_to_close.close, self._exits.are_successes())
            if self._watch is not None:
                stack.callback(self._watch.close)
            stack.callback(self._returns.close)
            for worker in self._exits.workers.values():
                stack.callback(worker.release)
            if self._owns_reaper:
                stack.callback(self._reaper.close)
            if self._streams is not None and not (self._stop and self._stop.has_passed_output()):
                self._streams.finish()  # after an error, the stop has not come to it

    def _conclude(self) -> RunProcsResult:
        return self._exits.result(self._streams, self.stdouts, self.stderrs)

    def _held_signals(self) -> AbstractContextManager[None]:
        if self._stop_signals is None:
            return contextlib.nullcontext()
        return self._stop_signals.held()

    def _begun(self) -> tuple[ExitWatch, Job]:
        """What there is from the start of the first worker on."""
        if self._watch is None or self._job is None:
            raise UsageError(f"the workers of {self.name!r} were not started; call start() first")
        return self._watch, self._job
