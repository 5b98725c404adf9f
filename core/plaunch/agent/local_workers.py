"""Workers that are processes of this host, in a context that reports their exits."""

from __future__ import annotations

import logging
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from plaunch.agent.messages import list_early_ends
from plaunch.agent.notifier import ExitReporter
from plaunch.agent.results import ReportedFailures
from plaunch.agent.worker import RunResult, WorkerState, describe_worker
from plaunch.agent.worker_store import HostedStore
from plaunch.errors import UnkillableWorkerError
from plaunch.process.components import ContextComponents
from plaunch.process.outcomes import RunProcsResult
from plaunch.process.proc import describe_process
from plaunch.process.stopping.job import Reaper
from plaunch.process.watches import HeldProcesses, UninterruptibleWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from plaunch.agent.components import AgentServices
    from plaunch.agent.extensions import Hang
    from plaunch.agent.notifier import Notifier
    from plaunch.agent.worker import WorkerGroup
    from plaunch.process.stopping.stop import Stop
    from plaunch.process.streams import Streams
    from plaunch.process.supervised import SupervisedContext

logger = logging.getLogger("plaunch")


# Seconds between a failure and its report, while the stop runs: other failures of the same moment
# and cause are found by then, and the last lines of output.
_SETTLE_TIME = 0.1


class LocalWorkers:
    """The workers of a `LocalElasticAgent`.

    Args:
        group: the workers.
        notifier: notifies the agent's listeners of exits and stops.
        services: of the agent.
        start: calls `launch`, and returns the process ids by local rank.
        monitor: calls `monitor`, and returns its result. Both are methods of the agent, which a
            program may replace in its class or in one agent.
        shutdown_timeout: seconds between the soft signal and SIGKILL.
        sleep_timeout: seconds that a worker may be in uninterruptible sleep; 0 means no limit.
    """

    settle_time = _SETTLE_TIME

    def __init__(
        self,
        group: WorkerGroup,
        notifier: Notifier,
        services: AgentServices,
        start: Callable[[], Mapping[int, Any]],
        monitor: Callable[[], RunResult],
        *,
        shutdown_timeout: float,
        sleep_timeout: float,
    ) -> None:
        self.group = group
        self.holds = HeldProcesses()  # of the workers of this round
        self.context: SupervisedContext | None = None
        self.reaper = Reaper(keep_daemons=services.keep_daemons)
        self.sleep_watch = UninterruptibleWatch(sleep_timeout) if sleep_timeout > 0 else None
        self._notifier = notifier
        self._start = start
        self._monitor = monitor
        self._shutdown_timeout = shutdown_timeout
        self._stop_closes_store = False  # whether the end of the stop in progress does
        self._exits = ExitReporter(notifier)
        self._starter = services.starter
        self._exit_rules = services.exit_rules
        self._stats = services.output_stats
        self._stdin = services.stdin
        self._store = HostedStore(services.open_store, self.reaper, services.starter)
        # Waits for the workers of other nodes to leave the store, if this node hosts it.
        self.wait_for_guests = self._store.wait_for_guests
        self._reported = ReportedFailures()
        self._unkillable: UnkillableWorkerError | None = None
        # An agent may be shut down on another thread than the loop's.
        self._lock = threading.RLock()

    # --- start and check --------------------------------------------------------------------------

    @property
    def is_final(self) -> bool:
        """Whether no restart may follow the failure of this round."""
        return self._reported.is_final

    def preparation(self) -> Callable[[], Mapping[str, float]] | None:
        """What must return before `start`, if there is a starter."""
        return None if self._starter is None else self._starter.wait

    def start(self) -> None:
        """Start the workers of a round, and record their ids."""
        ids = self._start()
        for worker in self.group.workers:
            worker.id = ids.get(worker.local_rank)

    def launch(
        self,
        envs: Mapping[int, Mapping[str, str]],
        start: Callable[[ContextComponents], SupervisedContext],
    ) -> dict[int, Any]:
        """Start the workers of a round; returns their process ids by local rank.

        Args:
            envs: their environments by local rank.
            start: creates and starts their context.
        """
        with self._lock:
            self.holds = HeldProcesses()
            self._exits = ExitReporter(self._notifier)
            own_fds = self._store.open(self.group, envs.get(0, {}))
            self._reported = ReportedFailures(time.time())
            self.context = start(
                ContextComponents(
                    reaper=self.reaper,
                    stats=self._stats,
                    starter=self._starter,
                    private_fds=own_fds,
                    observer=self._exits,
                    holds=self.holds,
                    worker_info=lambda rank, _: describe_worker(self.group.workers[rank]),
                    exit_rules=self._exit_rules,
                    stdin=self._stdin,
                )
            )
            self._store.watch(self.context.pids().values())
            return dict(self.context.pids())

    def forked(self) -> Collection[int]:
        """The local ranks that the starter has started."""
        return () if self.context is None else self.context.from_starter()

    def check(self) -> RunResult:
        """Return the state of the workers, as `_monitor_workers` of the agent finds it."""
        return self._monitor()

    def monitor(self) -> RunResult:
        """The state of the workers; waits only while another thread shuts them down."""
        with self._lock:
            if self.context is None:
                return RunResult(WorkerState.UNKNOWN)
            lost = self._store.tend()
            result = self.context.check()
            if result is not None and result.stopped and not result.failures:
                # Not stopped by the loop, which monitors running workers only.
                self.context.fail_stopped()
                result = self.context.check()
            if result is None:
                # After a failure, all exits are reported at the end of the stop.
                self._exits.report(self.context.take_exits())
            if result is not None and not result.failures:
                # Workers that have all succeeded do not need the store.
                self._reported = ReportedFailures()
            elif lost is not None:
                self._reported.add_lost_store(lost)
            if result is not None or self._reported.by_rank:
                return self._result(result or RunProcsResult())
            stuck = _give_up_stuck(self.context, self.sleep_watch, self._exits.ended)
            self._unkillable = stuck or self._unkillable
            return RunResult(WorkerState.HEALTHY if stuck is None else WorkerState.UNHEALTHY)

    def exit_fds(self) -> Sequence[int]:
        """Descriptors that become readable at an exit, or when the store has something to do."""
        return [*(_exit_fds(self.context) or ()), *self._store.fds()]

    def due(self) -> float:
        """Seconds until the store or the reaper has something to do, or workers must be polled."""
        fds, due = _exit_fds(self.context), self.reaper.period
        if fds is None or (fds and self.sleep_watch is not None):
            due = min(due, self.group.spec.monitor_interval)
        late_exits = None if self.context is None else self.context.late_exits
        others = (self._store.due(), None if late_exits is None else late_exits.due())
        return min([due, *(each for each in others if each is not None)])

    def tend_store(self) -> None:
        """Do what is due for the store, which workers of other nodes use."""
        lost = self._store.tend()
        if lost is not None:
            logger.warning("%s", lost)

    def are_of_use(self) -> bool:
        """Whether no worker is stuck in the kernel."""
        return self._unkillable is None

    # --- stop -------------------------------------------------------------------------------------

    def begin_stop(self, signum: signal.Signals) -> Stop | None:
        """Begin to stop the workers with `signum`."""
        return self._begin(signum, closes_store=True)

    def begin_clearing(self) -> Stop | None:
        """Begin to end the orphans; the store stays, for workers of other nodes."""
        return self._begin(signal.SIGTERM, closes_store=False)

    def _begin(self, signum: signal.Signals, *, closes_store: bool) -> Stop | None:
        if self.context is None:
            return None  # no worker was started, or only by a subclass itself
        self._stop_closes_store = closes_store
        return self.context.begin_stop(signum, self._shutdown_timeout)

    def end_stop(self) -> None:
        """Close the store, and report the exits that the stop has seen."""
        if self._stop_closes_store:
            self._store.close()
        if self.context is not None:
            self.context.check()  # completes the failures
            self._exits.report(self.context.take_exits())
        if self._unkillable is not None:
            # Even if the worker has ended since: the host may be about to fail.
            raise self._unkillable

    def stop(self, signum: signal.Signals) -> None:
        """Stop all workers; returns when they are gone."""
        with self._lock:
            try:
                self._close(signum, self._shutdown_timeout)
            except UnkillableWorkerError:
                if self._unkillable is None:
                    raise
            if self._unkillable is not None:
                raise self._unkillable

    def shut_down(self, signum: signal.Signals, timeout: float | None) -> None:
        """Stop all workers, and release everything."""
        with self._lock:
            try:
                self._close(signum, self._shutdown_timeout if timeout is None else timeout)
            finally:
                self.reaper.close()

    def _close(self, signum: signal.Signals, timeout: float) -> None:
        try:
            if self.context is not None:
                self.context.close(signum, timeout)
        finally:
            if self.context is not None:
                self._exits.report(self.context.take_exits())
            self._store.close()

    # --- for the agent ----------------------------------------------------------------------------

    def stopped_result(self) -> RunResult | None:
        """The result so far."""
        result = None if self.context is None else self.context.check()
        return None if result is None else self._result(result)

    def streams(self) -> Streams | None:
        """The streams of the workers that started last."""
        return self._stats.streams

    def pids(self) -> dict[int, int]:
        """The process ids of the running workers, by global rank."""
        return {
            worker.global_rank: worker.id
            for worker in self.group.workers
            if isinstance(worker.id, int) and worker.local_rank not in self._exits.ended
        }

    def succeeded(self) -> Mapping[int, float]:
        """When the workers that succeeded ended, by global rank, in seconds since the epoch."""
        return self._exits.succeeded

    def log_files(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        """The files with stdout and stderr, by local rank; empty for none."""
        return ({}, {}) if self.context is None else (self.context.stdouts, self.context.stderrs)

    def signal(
        self,
        signum: signal.Signals,
        ranks: Collection[int] | None = None,
        reason: str = "",
    ) -> None:
        """Send a signal to the running workers, or to some global ranks, for a reason."""
        if self.context is None:
            return
        for worker in self.group.workers:
            if worker.local_rank in self._exits.ended or (
                ranks is not None and worker.global_rank not in ranks
            ):
                continue
            try:
                self.context.send_signal(worker.local_rank, signum, reason)
            except PermissionError:
                logger.warning(
                    "may not send %s to %s, which runs as another user",
                    signum.name,
                    describe_process(self.context.pids()[worker.local_rank]),
                )

    def note_hang(self, hang: Hang) -> None:
        """Make the next check fail the round, because its workers hang.

        If one of them ends with an exception and has not exited, that is the failure.
        """
        if self.fail_raised():
            return
        pid = self.pids().get(hang.rank)
        if pid is None:
            return  # it has ended, or this is another round
        ranks = {worker.global_rank: worker.local_rank for worker in self.group.workers}
        self._reported.add_hang(hang, ranks[hang.rank], pid)

    def fail_raised(self) -> bool:
        """Count running workers that end with an exception as failed; whether there are any."""
        with self._lock:
            late_exits = None if self.context is None else self.context.late_exits
            return late_exits is not None and late_exits.fail_raised()

    def note_peers_ended(self, ago: float) -> None:
        """Note that the workers of half of the nodes have succeeded."""
        late_exits = None if self.context is None else self.context.late_exits
        if late_exits is not None:
            late_exits.note_peers_ended(ago)

    # --- results ----------------------------------------------------------------------------------

    def _result(self, result: RunProcsResult) -> RunResult:
        ranks = {worker.local_rank: worker.global_rank for worker in self.group.workers}
        exits = {ranks[rank]: failure for rank, failure in result.failures.items()}
        failures = self._reported.merge(exits)
        return RunResult(
            state=WorkerState.FAILED if failures else WorkerState.SUCCEEDED,
            return_values={ranks[rank]: value for rank, value in result.return_values.items()},
            failures=failures,
            stopped={
                ranks[rank]: code
                for rank, code in result.stopped.items()
                if ranks[rank] not in self._reported.by_rank
            },
            early_ends=list_early_ends(self._exits.succeeded, failures),
        )


def _exit_fds(context: SupervisedContext | None) -> Sequence[int] | None:
    return () if context is None else context.exit_fds()


def _give_up_stuck(
    context: SupervisedContext, watch: UninterruptibleWatch | None, ended: Collection[int]
) -> UnkillableWorkerError | None:
    """Give up the workers that are stuck in the kernel; return which these are, if any."""
    if watch is None:
        return None
    pids = context.pids()
    stuck = watch.find_stuck({rank: pid for rank, pid in pids.items() if rank not in ended})
    if not stuck:
        return None
    named = "; ".join(
        f"local rank {rank}: {describe_process(pids[rank])}, for {seconds:.1f} s"
        for rank, seconds in sorted(stuck.items())
    )
    error = UnkillableWorkerError(
        f"workers sleep uninterruptibly in the kernel for more than {watch.timeout:g} s: {named}. "
        "They are not waited for, and no other workers are started on this host, which probably "
        "needs a restart"
    )
    logger.error("%s", error)
    for rank in stuck:
        context.abandon(rank)
    return error
