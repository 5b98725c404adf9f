"""What plaunch's own contexts have in common: starting, watching and stopping processes."""

from __future__ import annotations

import abc
import contextlib
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.durations import SHUTDOWN_TIMEOUT
from plaunch.errors import PlaunchError, UnkillableWorkerError, UsageError, WorkerStartError
from plaunch.process.children import ExitPoller, restore_sigchld
from plaunch.process.components import ContextComponents, WorkerResults, default_binder
from plaunch.process.context import PContext
from plaunch.process.late_exits import LateExits
from plaunch.process.marks import JOBS_VARIABLE, inheritable
from plaunch.process.outcomes import WorkerOutcomes
from plaunch.process.own_process import descriptor_limit
from plaunch.process.stopping.job import Reaper
from plaunch.process.stopping.stop import Stop, describe_unkillable
from plaunch.process.stopping.stop_sequence import StopSequence, WorkerSession
from plaunch.process.streams import LastOutput
from plaunch.process.watches import OutOfMemoryCounter

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from plaunch.process.children import Popen, ProcessHandle
    from plaunch.process.components import Binder, Binding, WorkerExit, WorkerObserver
    from plaunch.process.logs import LogsSpecs
    from plaunch.process.outcomes import RunProcsResult
    from plaunch.process.stopping.job import Job
    from plaunch.process.streams import Streams

_log = logging.getLogger("plaunch")

_LONGEST_WAIT = 1.0  # seconds; another thread may have closed what a thread waits for


class _Opened(NamedTuple):
    """What a context opens before it starts its workers; `resources` closes all of it."""

    poller: ExitPoller
    job: Job
    streams: Streams
    output: LastOutput
    resources: contextlib.ExitStack


class SupervisedContext(PContext):
    """A context whose workers plaunch starts and watches itself; any thread may close it.

    A subclass says how one worker is started. The positional arguments have the order of
    torchrun's `SubprocessContext`.

    Args:
        results: receives what the workers send back; programs send nothing. All other arguments
            are those of `PContext` and `start_processes`.
    """

    _has_forked = False  # whether workers are forked, and not programs of their own
    late_exits: LateExits | None = None  # finds workers that do not exit, once they are started

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: Mapping[int, Any],
        envs: Mapping[int, Mapping[str, Any]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: object = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        *,
        binder: Binder | None = None,
        components: ContextComponents | None = None,
        results: WorkerResults | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            name,
            entrypoint,
            args,
            envs,
            logs_specs,
            log_line_prefixes,
            duplicate_stdout_filters,
            duplicate_stderr_filters,
            **options,
        )
        self._binder = default_binder(numa_options) if binder is None else binder
        self._bindings: Mapping[int, Binding] = {}
        self._components = components or ContextComponents()
        self._reaper = self._components.reaper or Reaper()
        self._results = results or WorkerResults()
        program = entrypoint if isinstance(entrypoint, str) else sys.executable
        self._outcomes = WorkerOutcomes(
            name, self.nprocs, self._logs_dest, self._results, self._components.worker_info, program
        )
        self._from_starter: set[int] = set()  # the local ranks that the starter has started
        self._lock = threading.RLock()  # held while the state of the workers is read or changed
        self._opened: _Opened | None = None
        self._observer: WorkerObserver | None = None  # from the moment when all are started
        self._abandoned: set[int] = set()
        self._is_escalated = False
        self._stop: Stop | None = None
        self._is_closed = False
        self._result: RunProcsResult | None = None

    @abc.abstractmethod
    def _start_worker(
        self, local_rank: int, stdout: int | None, stderr: int | None
    ) -> ProcessHandle:
        """Start one worker with these descriptors as its streams; None inherits the launcher's."""

    def pids(self) -> dict[int, int]:
        """Return the process ids of the workers by local rank, also of those that have ended."""
        return {rank: worker.pid for rank, worker in self._outcomes.workers.items()}

    def from_starter(self) -> frozenset[int]:
        """Return the local ranks of the workers that the starter has started."""
        return frozenset(self._from_starter)

    def exit_fds(self) -> list[int] | None:
        """Return one descriptor that is readable when `wait(0)` has something to do.

        None where the kernel has no pidfds; the context must then be polled.
        """
        if self._is_closed:
            return []
        fd = None if self._opened is None else self._opened.poller.fileno()
        return None if fd is None else [fd]

    def send_signal(self, local_rank: int, signum: signal.Signals, reason: str = "") -> None:
        """Send a signal to one worker, unless it has ended; the reason is for its failure."""
        self._outcomes.note_signal(local_rank, signum, reason)
        self._outcomes.workers[local_rank].send_signal(signum)

    def take_exits(self) -> list[WorkerExit]:
        """Return the exits seen since the last call, in the order seen."""
        return self._outcomes.take()

    def escalate(self) -> None:
        """Skip the grace of the stop in progress, or of the next one."""
        self._is_escalated = True
        if self._stop is not None:
            self._stop.escalate()
        if self._opened is not None:
            self._opened.poller.wake()

    def abandon(self, local_rank: int) -> None:
        """Do not wait for this worker in a stop, which then raises `UnkillableWorkerError`."""
        self._abandoned.add(local_rank)

    # --- what a subclass starts a worker with -------------------------------------------------

    def _environment(self, local_rank: int) -> dict[str, str]:
        """Return the environment of this worker, with the tags that identify its processes."""
        tags = {JOBS_VARIABLE: self._begun().job.tags(local_rank)}
        return inheritable({**os.environ, **self.envs[local_rank], **tags})

    def _popen(
        self, rank: int, command: Sequence[str], start_new_session: bool = True, **options: Any
    ) -> Popen:
        """Start the program of this worker, with the arguments of `subprocess.Popen`."""
        if (starter := self._components.starter) is not None and "stdin" not in options:
            worker = starter.start(rank, command, binding=self._bindings.get(rank), **options)
            if worker is not None:
                self._from_starter.add(rank)
                return worker
        import subprocess  # not needed where all workers are forked

        with self._bound(rank):
            return subprocess.Popen(command, start_new_session=start_new_session, **options)

    def _bound(self, local_rank: int) -> AbstractContextManager[None]:
        """Bind processes that this thread starts to the processors and devices of this worker."""
        binding = self._bindings.get(local_rank)
        return contextlib.nullcontext() if binding is None else binding.applied()

    def _fork_fds(self) -> tuple[int | None, list[int]]:
        """Return the descriptors that a fork of this process has to deal with.

        Returns:
            The one for `become_worker`, if there is a guard, and those that the fork must close.
        """
        poller, starter = self._begun().poller, self._components.starter
        guards = self._reaper.guards
        guard_fd = guards.line_fd()
        fds = (*self._components.private_fds, *poller.own_fds(), *guards.own_fds())
        fds += () if starter is None else (*starter.fds(),)
        return guard_fd, [fd for fd in fds if fd != guard_fd]

    # --- start, check, stop -----------------------------------------------------------------------

    def _start(self) -> None:
        restore_sigchld()
        with self._held_signals():
            try:
                if self._binder is not None:
                    self._bindings = self._binder.plan(self.nprocs)
                self._opened = self._open()
                self._start_all(self._opened)
            except PlaunchError:
                raise
            except (OSError, EOFError) as error:
                from plaunch.capacity import explain  # errors only

                count = len(self._outcomes.workers)
                is_one = self._opened is not None and count < self.nprocs
                who = f"local rank {count}" if is_one else "the workers"
                text = f"cannot start {who} of {self.name!r}: {explain(error)}"
                raise WorkerStartError(text) from error
        self._observer = self._components.observer

    def _open(self) -> _Opened:
        """Open what the workers need: all of it, or nothing after an error."""
        stats = self._components.stats
        with contextlib.ExitStack() as stack:
            if (logs := self._logs_to_close) is not None:
                stack.callback(lambda: logs.close(self._outcomes.are_successes()))
            poller = stack.enter_context(contextlib.closing(ExitPoller()))
            self._outcomes.begin(OutOfMemoryCounter())
            stack.callback(self._results.close)
            self._results.begin(self.nprocs, poller)
            stack.callback(self._outcomes.release)
            if self._components.reaper is None:
                stack.callback(self._reaper.close)
            job = self._reaper.begin(
                has_forked=self._has_forked,
                folder=self._logs_specs.temporary_dir,  # the guard removes it
                poller=poller,
            )
            streams = self._open_streams(
                self._logs_dest,
                capture_stderr=os.environ.get("PLAUNCH_CAPTURE_STDERR", "1") != "0",
                keeps_daemons=self._reaper.keep_daemons,
                before=None if stats is None else stats.streams,
            )
            wake, rules, holds = poller.wake, self._components.exit_rules, self._components.holds
            output = LastOutput(streams, wake, shows_rest=stats is None)
            # After an error, if the stop has not come to it.
            stack.callback(lambda: None if output.is_begun else streams.finish())
            self.late_exits = LateExits(self._outcomes, streams, rules, wake, holds=holds)
            stack.callback(self.late_exits.close)
            return _Opened(poller, job, streams, output, stack.pop_all())

    def _start_all(self, opened: _Opened) -> None:
        poller, job, streams = opened.poller, opened.job, opened.streams
        starter, stats = self._components.starter, self._components.stats
        if starter is not None:
            starter.prepare({rank: self._environment(rank) for rank in range(self.nprocs)})
        for rank in range(self.nprocs):
            worker = self._start_worker(rank, *streams.child_fds(rank))
            self._outcomes.workers[rank] = worker
            descriptor_limit().give_back(worker.pid)
            job.started(rank, worker.pid)
            poller.add(rank, worker.pid, worker.has_ended, fd=worker.exit_fd())
        streams.start()
        if stats is not None:
            stats.follow(streams)

    def _idle(self, remaining: float | None, period: float) -> None:
        del period  # an exit wakes the poller
        if self._opened is not None:
            seconds = _LONGEST_WAIT if remaining is None else min(remaining, _LONGEST_WAIT)
            self._opened.poller.wait(seconds)

    def check(self) -> RunProcsResult | None:
        """Return the state of the workers, as known now; neither waits nor stops anything.

        Returns:
            None while some run and none has failed. Else the result so far: after a failure, others
            may be alive, and the caller must `begin_stop`. It is complete when the stop is over.
        """
        opened = self._begun()
        with self._lock:
            if not self._is_closed:
                with self._held_signals():
                    self._note_exits(opened.poller)
                    if self._outcomes.live() and not self._outcomes.failures:
                        self._reaper.update_if_due()
                        if self.late_exits is None or not self.late_exits.update():
                            return None
            return self._outcomes.result(opened.streams)

    def fail_stopped(self) -> None:
        """Count workers that were stopped as failed, as `wait` does; see `RunProcsResult`."""
        self._outcomes.fail_stopped()

    def begin_stop(self, death_sig: signal.Signals, timeout: float) -> Stop:
        """Begin to stop the workers and their orphans, or return the stop in progress.

        The caller takes the steps of the stop.

        Args:
            death_sig: the soft signal.
            timeout: seconds until SIGKILL.
        """
        with self._lock:
            if self._stop is None:
                self._stop = self._create_stop(self._begun(), death_sig, timeout)
            return self._stop

    def _create_stop(self, opened: _Opened, death_sig: signal.Signals, timeout: float) -> Stop:
        outcomes, observer = self._outcomes, self._observer
        self._note_exits(opened.poller)
        outcomes.begin_stop()
        if outcomes.live() and not opened.job.inherits_orphans():
            opened.job.scan()
        sequence = None
        # Workers that have succeeded may leave daemons behind, if the user says so.
        if not (self._reaper.keep_daemons and outcomes.are_successes() and not outcomes.stopped()):
            sequence = StopSequence(
                {
                    rank: WorkerSession(worker, rank, opened.job, self._components.holds)
                    for rank, worker in outcomes.workers.items()
                },
                name=self.name,
                death_sig=death_sig,
                grace=timeout,
                abandoned=self._abandoned,
                on_step=None if observer is None else observer.on_stop_step,
            )
        stop = Stop(
            sequence=sequence,
            job=opened.job,
            poller=opened.poller,
            output=opened.output,
            find_live=self._reap_ended,
            release=self._end_stop,
            lock=self._lock,
        )
        if self._is_escalated:
            stop.escalate()
        return stop

    def _poll(self) -> RunProcsResult | None:
        with self._lock:
            if self._result is None and self.check() is not None:
                try:
                    self.close()
                finally:
                    self.fail_stopped()
                    self._result = self.check()
            return self._result

    def _must_stop(self) -> bool:
        return self._opened is not None and not self._is_closed

    def _close(self, death_sig: signal.Signals, timeout: float = SHUTDOWN_TIMEOUT) -> None:
        with self._lock, self._held_signals():
            if self._is_closed or self._opened is None:
                return
            self.begin_stop(death_sig, timeout).run()

    def _note_exits(self, poller: ExitPoller) -> None:
        """Record every exit that has not been recorded, in the order seen."""
        self._reaper.guards.replace_killed()
        self._results.receive()
        for rank in poller.ended(self._outcomes.live()):
            seen = self._outcomes.note(rank)
            if self._observer is not None:
                self._observer.on_exit(seen)

    def _reap_ended(self) -> list[int]:
        """Record exits and reap workers that have ended; return the local ranks of the others."""
        self._note_exits(self._begun().poller)
        self._outcomes.reap()
        return self._outcomes.live()

    def _end_stop(self, stuck: dict[int, list[int]], orphans: list[int]) -> None:
        """Release everything at the end of a stop; raise if processes are still there."""
        self._reap_ended()
        self._is_closed = True
        self._begun().resources.close()
        if stuck or orphans:
            message = describe_unkillable(self.name, stuck, orphans, self._outcomes.failures)
            _log.error(message)
            raise UnkillableWorkerError(message)

    def _held_signals(self) -> AbstractContextManager[None]:
        signals = self._stop_signals
        return contextlib.nullcontext() if signals is None else signals.held()

    def _begun(self) -> _Opened:
        """Return what the context has opened; raises UsageError before the start."""
        if self._opened is None:
            raise UsageError(f"the workers of {self.name!r} were not started; call start() first")
        return self._opened
