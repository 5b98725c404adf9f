"""The half that plaunch's own two kinds of context have in common.

Starting workers one after the other with their streams, noticing their ends, stopping them with
the sequence, and putting the result together. A kind says how one worker is started and what its
exit means.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from plaunch.errors import UnkillableWorkerError, UsageError, WorkerStartError
from plaunch.process.contexts.context import SHUTDOWN_TIMEOUT, PContext, ProcessExit, RunProcsResult
from plaunch.process.failures.failure import ProcessFailure
from plaunch.process.failures.oom import OutOfMemoryWatch
from plaunch.process.kernel.descriptor_limit import descriptor_limit
from plaunch.process.kernel.watch import ExitWatch
from plaunch.process.stopping.reaper import Reaper
from plaunch.process.stopping.session import WorkerSession
from plaunch.process.stopping.stop import Stop
from plaunch.process.stopping.stop_sequence import StopSequence
from plaunch.process.streams.worker_streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from plaunch.process.kernel.handle import ProcessHandle
    from plaunch.process.stopping.job import Job
    from plaunch.process.stopping.stop_sequence import StopStep
    from plaunch.process.streams.traffic import Traffic

_log = logging.getLogger("plaunch")

_Reply = tuple[int, int, int]  # what tells one error file from another at the same path


class SupervisedContext(PContext):
    """A context whose workers plaunch starts and watches itself.

    Args:
        reaper: ends what the workers leave behind. An agent, which starts workers again and again,
            gives its own, and closes it; else the context has one for itself.
        traffic: counts the output that passes through this process.
        private_fds: descriptors of this process that a forked worker must not keep.

    All other arguments are those of `PContext`.
    """

    _has_forked = False  # whether workers are forked, and not programs of their own

    def __init__(
        self,
        *args: Any,
        reaper: Reaper | None = None,
        traffic: Traffic | None = None,
        private_fds: Sequence[int] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._private_fds = tuple(private_fds)
        self._traffic = traffic
        self._reaper = Reaper() if reaper is None else reaper
        self._owns_reaper = reaper is None
        self._job: Job | None = None
        self._abandoned: set[int] = set()
        self._watch: ExitWatch | None = None
        self._streams: Streams | None = None
        self._workers: dict[int, ProcessHandle] = {}
        self._exits: dict[int, ProcessExit] = {}
        self._untold: list[ProcessExit] = []
        self._failures: dict[int, ProcessFailure] = {}
        self._stop: Stop | None = None
        self._ended_by_us: frozenset[int] = frozenset()
        self._told_to_end: frozenset[int] = frozenset()
        self._memory: OutOfMemoryWatch | None = None
        self._memory_was_short = False
        self._is_escalated = False
        self._is_closed = False
        self._old_replies: dict[int, _Reply | None] = {}
        self._result: RunProcsResult | None = None
        # Called with each step of a stop, and with each end of a worker as it is seen and, if that
        # is one, its failure, whose last lines are not known by then. Neither may raise or block.
        self.on_stop_step: Callable[[StopStep], None] | None = None
        self.on_exit: Callable[[ProcessExit, ProcessFailure | None], None] | None = None

    @abc.abstractmethod
    def _start_worker(
        self, local_rank: int, stdout: int | None, stderr: int | None
    ) -> ProcessHandle:
        """Start one worker with these descriptors as its streams; None inherits the launcher's."""

    @abc.abstractmethod
    def _judge(self, seen: ProcessExit) -> ProcessFailure | None:
        """What the exit of a worker means that ended by itself; None if it succeeded."""

    @abc.abstractmethod
    def _collect_return_values(self) -> dict[int, Any]:
        """The return values by local rank; called once all workers have succeeded."""

    def _receive(self) -> None:
        """Take what the workers sent; called again and again, and never waits for long."""

    def _release(self) -> None:
        """Close what belongs to the kind; called once, when all workers are gone."""

    def pids(self) -> dict[int, int]:
        """The process ids of the workers by local rank, also of those that have ended."""
        return {rank: worker.pid for rank, worker in self._workers.items()}

    def exit_fds(self) -> list[int] | None:
        """One descriptor that is readable when `wait(0)` has something to do.

        None where the kernel has no pidfds; the context must then be polled.
        """
        if self._is_closed:
            return []
        fd = None if self._watch is None else self._watch.fileno()
        return None if fd is None else [fd]

    def send_signal(self, local_rank: int, signum: signal.Signals) -> None:
        """Send a signal to one worker itself, and nobody else; nothing happens if it has ended.

        Raises:
            PermissionError: it runs as another user.
        """
        self._workers[local_rank].send_signal(signum)

    def take_exits(self) -> list[ProcessExit]:
        """The exits seen since the last call, in the order seen."""
        exits, self._untold = self._untold, []
        return exits

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

    def _tags(self, local_rank: int) -> str:
        """By what the processes of this worker are known, in their environment."""
        if self._job is None:
            raise RuntimeError("a worker is started before its job has begun")
        return self._job.tags(local_rank)

    def _scratch_dir(self) -> str | None:
        """A temporary folder that nobody needs once the launcher is gone, if there is one."""
        folder = getattr(self._logs_specs, "temporary_dir", None)
        return folder if isinstance(folder, str) else None

    def _start(self) -> None:
        _restore_sigchld()
        with self._held_signals():
            self._watch = ExitWatch()
            self._memory = OutOfMemoryWatch()
            self._job = self._reaper.begin(
                has_forked=self._has_forked, folder=self._scratch_dir(), watch=self._watch
            )
            self._streams = Streams(
                self._logs_dest,
                self.nprocs,
                prefixes=self._log_line_prefixes,
                stdout_filters=self._stdout_filters,
                stderr_filters=self._stderr_filters,
                capture_stderr=os.environ.get("PLAUNCH_CAPTURE_STDERR", "1") != "0",
                traffic=self._traffic,
                keeps_daemons=self._reaper.keep_daemons,
            )
            # A logs spec may name the same file again, with what an earlier worker wrote.
            self._old_replies = {rank: self._find_reply(rank) for rank in range(self.nprocs)}
            for rank in range(self.nprocs):
                worker = self._start_worker(rank, *self._streams.child_fds(rank))
                self._workers[rank] = worker
                descriptor_limit().give_back(worker.pid)
                self._job.started(rank, worker.pid)
                self._watch.add(rank, worker.pid, _end_of(worker), fd=worker.exit_fd())
            self._streams.start()

    def _start_tails(self) -> None:
        """Nothing to do: teed streams pass through the launcher."""

    def _idle(self, remaining: float | None, period: float) -> None:
        del period  # there is no need to look in between
        if self._watch is not None:
            self._watch.wait(remaining)

    def look(self) -> RunProcsResult | None:
        """How the workers are, as far as it is known now; it neither waits nor stops anything.

        Returns:
            None while all is well and some still run. Else the result so far: if workers have
            failed, others may be alive, and `begin_stop` is the next thing to do. It is complete
            when the stop is over.

        Raises:
            UsageError: the workers were not started.
        """
        if self._watch is None:
            raise UsageError(f"the workers of {self.name!r} were not started; call start() first")
        if not self._is_closed:
            with self._held_signals():
                self._note_exits()
                if self._live() and not self._failures:
                    self._reaper.tend()
                    return None
        return self._conclude()

    def begin_stop(self, death_sig: signal.Signals, timeout: float) -> Stop:
        """Begin to stop what runs, and to end what was left behind; the caller drives the stop.

        Args:
            death_sig: the soft signal.
            timeout: seconds until SIGKILL.

        Returns:
            The stop, which is over at once if there is nothing to do; the same one if it was begun
            before.

        Raises:
            UsageError: the workers were not started.
        """
        if self._stop is not None:
            return self._stop
        if self._watch is None or self._job is None:
            raise UsageError(f"the workers of {self.name!r} were not started; call start() first")
        watch, job, streams = self._watch, self._job, self._streams
        self._note_exits()
        live = self._live()
        self._told_to_end = frozenset(live)
        self._ended_by_us = frozenset(
            rank for rank in live if not (self._has_replied(rank) or self._has_returned(rank))
        )
        sequence = (
            None if self._spares_what_is_left() else self._make_sequence(death_sig, timeout, job)
        )
        if live:
            job.look_at_all()
        self._stop = Stop(
            sequence=sequence,
            job=job,
            look=self._look_at_ended,
            finish_output=self._finish_output,
            hurry_output=_nothing if streams is None else streams.hurry,
            has_output=streams is not None and streams.is_reading(),
            release=self._end_stop,
            wake=watch.wake,
            is_told=lambda: watch.fileno() is not None,
        )
        if self._is_escalated:
            self._stop.escalate()
        return self._stop

    def _poll(self) -> RunProcsResult | None:
        if self._result is not None:
            return self._result
        if self.look() is None:
            return None
        try:
            self.close()
        finally:
            self._result = self._conclude()
        return self._result

    def _close(self, death_sig: signal.Signals, timeout: float = SHUTDOWN_TIMEOUT) -> None:
        if self._is_closed or self._watch is None:
            return
        with self._held_signals():
            if self._job is None:
                self._release_all()
                return
            stop = self.begin_stop(death_sig, timeout)
            try:
                _drive(stop, self._watch)
            except UnkillableWorkerError:
                raise  # it is over
            except BaseException:
                # Whatever interrupts a stop (KeyboardInterrupt above all) must leave no worker.
                try:
                    stop.escalate()
                    _drive(stop, self._watch)
                finally:
                    stop.give_up()
                raise

    def _make_sequence(self, death_sig: signal.Signals, grace: float, job: Job) -> StopSequence:
        return StopSequence(
            {rank: WorkerSession(worker, rank, job) for rank, worker in self._workers.items()},
            name=self.name,
            death_sig=death_sig,
            grace=grace,
            abandoned=self._abandoned,
            tell=self.on_stop_step,
        )

    def _look_at_ended(self) -> list[int]:
        """Note the ends of workers, let the system forget them; which local ranks are alive."""
        self._note_exits()
        for rank in self._exits:
            self._workers[rank].reap()
        return self._live()

    def _end_stop(self, stuck: dict[int, list[int]], left: list[int]) -> None:
        """Release everything when a stop is over, and say so if something is still there."""
        self._look_at_ended()
        self._release_all()
        if stuck or left:
            raise self._unkillable(stuck, left)

    def _finish_output(self) -> None:
        if self._streams is not None:
            self._streams.finish()

    def _spares_what_is_left(self) -> bool:
        """Whether all workers have succeeded and may leave daemons behind."""
        return (
            self._reaper.keep_daemons
            and len(self._exits) == self.nprocs
            and not self._failures
            and not any(seen.stopped or seen.exitcode for seen in self._exits.values())
        )

    def _release_all(self) -> None:
        """Release everything, once the workers are gone or have turned out to be unkillable."""
        self._is_closed = True
        with contextlib.ExitStack() as stack:
            if self._logs_to_close is not None:
                succeeded = all(seen.exitcode == 0 for seen in self._exits.values())
                stack.callback(
                    self._logs_to_close.close,
                    succeeded and len(self._exits) == self.nprocs and not self._failures,
                )
            if self._watch is not None:
                stack.callback(self._watch.close)
                stack.callback(self._reaper.forget_watch)
            stack.callback(self._release)
            for worker in self._workers.values():
                stack.callback(worker.release)
            if self._owns_reaper:
                stack.callback(self._reaper.close)
            self._finish_output()  # which nobody may have done yet, after an error

    def _live(self) -> list[int]:
        return [rank for rank in self._workers if rank not in self._exits]

    def _has_replied(self, local_rank: int) -> bool:
        """Whether a worker that still runs has already reported its own exception.

        Its interpreter then only takes its time to end, and it failed by itself, maybe first.
        """
        return self._find_reply(local_rank) not in (None, self._old_replies.get(local_rank))

    def _has_returned(self, local_rank: int) -> bool:
        """Whether a worker that still runs has succeeded already, and only has to end."""
        del local_rank
        return False

    def _find_reply(self, local_rank: int) -> _Reply | None:
        path = self.error_files.get(local_rank)
        if not path or path == os.devnull:
            return None
        try:
            status = os.stat(path)
        except OSError:
            return None
        return (status.st_ino, status.st_mtime_ns, status.st_size) if status.st_size else None

    def _note_exits(self) -> None:
        """Record every end of a worker that has not been recorded, in the order seen."""
        if self._watch is None:
            return
        self._reaper.tend_guard()
        self._receive()
        for rank in self._watch.ended():
            worker = self._workers[rank]
            exitcode = worker.poll()
            if exitcode is None:
                raise RuntimeError(f"pid {worker.pid} has ended without an exit code")
            stopped = rank in self._ended_by_us
            if exitcode and rank in self._told_to_end and not stopped:
                # Its end was hastened: after success, or after it had reported its exception.
                if self._has_returned(rank):
                    stopped = True
                elif exitcode < 0:
                    exitcode = 1
            seen = ProcessExit(rank, worker.pid, exitcode, time.time(), stopped)
            self._exits[rank] = seen
            self._untold.append(seen)
            failure = None if stopped else self._judge(seen)
            if failure is not None:
                failure.oom_killed = exitcode == -signal.SIGKILL and self._is_short_of_memory()
                self._failures[rank] = failure
                _log.debug(
                    "%s %d (pid %d) failed: %s",
                    self.name,
                    rank,
                    worker.pid,
                    failure.describe_exit(),
                )
            if self.on_exit is not None:
                self.on_exit(seen, failure)

    def _is_short_of_memory(self) -> bool:
        """Whether the kernel has killed for want of memory since the workers were started."""
        if not self._memory_was_short and self._memory is not None:
            self._memory_was_short = self._memory.has_killed()
        return self._memory_was_short

    def _conclude(self) -> RunProcsResult:
        failures = dict(self._failures)
        if failures:
            for rank in self._live():
                if rank not in self._ended_by_us and self._has_replied(rank):
                    # Its interpreter only takes its time to end; it may have failed first.
                    path = self.error_files.get(rank, "")
                    failures[rank] = ProcessFailure(
                        rank, self._workers[rank].pid, 1, path, log_files=self._log_files(rank)
                    )
        if self._streams is not None:
            for rank, failure in failures.items():
                failure.last_lines = self._streams.last_lines(rank)
        result = RunProcsResult(
            failures=failures,
            stdouts=dict(self.stdouts),
            stderrs=dict(self.stderrs),
            stopped={rank: seen.exitcode for rank, seen in self._exits.items() if seen.stopped},
        )
        if len(self._exits) == self.nprocs and not result.failures and not result.stopped:
            result.return_values = self._collect_return_values()
        return result

    def _unkillable(self, stuck: dict[int, list[int]], orphans: list[int]) -> UnkillableWorkerError:
        from plaunch.process.stopping.unkillable import describe_unkillable  # noqa: PLC0415 - rare

        cause = "".join(
            f" They were stopped because local rank {rank} (pid {failure.pid}) failed: "
            f"{failure.describe_exit()}."
            for rank, failure in list(self._failures.items())[:1]
        )
        message = describe_unkillable(self.name, stuck, orphans) + cause
        _log.error(message)
        return UnkillableWorkerError(message)

    def _held_signals(self) -> AbstractContextManager[None]:
        if self._stop_signals is None:
            return contextlib.nullcontext()
        return self._stop_signals.held()


def _drive(stop: Stop, watch: ExitWatch) -> None:
    while (delay := stop.step()) is not None:
        watch.wait(delay)


def _nothing() -> None:
    """There is no output that could be hurried."""


def _end_of(worker: ProcessHandle) -> Callable[[], bool]:
    return lambda: worker.poll() is not None


def _restore_sigchld() -> None:
    """Undo an inherited "SIGCHLD is ignored", with which the kernel forgets exit codes.

    Raises:
        WorkerStartError: it is ignored, and only the main thread could change that.
    """
    if signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN:
        return
    if threading.current_thread() is not threading.main_thread():
        raise WorkerStartError(
            "SIGCHLD is ignored in this process, so that the exit codes of workers are lost; call "
            "signal.signal(signal.SIGCHLD, signal.SIG_DFL) on the main thread first"
        )
    _log.warning("SIGCHLD was ignored, so that exit codes would be lost; it is restored")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
