"""The agent that runs its workers as local processes."""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import replace
from string import Template
from typing import TYPE_CHECKING, Any

from plaunch.agent import moments
from plaunch.agent.agent import SimpleElasticAgent
from plaunch.agent.api import DEFAULT_ROLE
from plaunch.agent.arguments import macros
from plaunch.agent.env import worker_environment
from plaunch.agent.health import HealthCheckServer, find_server
from plaunch.agent.stopping import ContextStop
from plaunch.agent.watchdog import Watchdog
from plaunch.agent.worker import (
    RunResult,
    Worker,
    WorkerExit,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
    describe_worker,
)
from plaunch.agent.worker_store.round import lost_store, open_store
from plaunch.agent.worker_store.store import WorkerStore
from plaunch.durations import PATIENCE
from plaunch.errors import UnkillableWorkerError, UsageError, WorkerStoreHostError
from plaunch.metrics import prof
from plaunch.process.binding import default_binder
from plaunch.process.contexts.context import RunProcsResult
from plaunch.process.contexts.start import start_processes
from plaunch.process.contexts.supervised import SupervisedContext
from plaunch.process.kernel.uninterruptible import UninterruptibleWatch, uninterruptible_timeout_of
from plaunch.process.stopping.reaping.reaper import Reaper
from plaunch.process.stopping.session import describe_process
from plaunch.process.streams.std import Std

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.agent.status.alive import Alive
    from plaunch.agent.stopping import WorkersStop
    from plaunch.agent.waiting import Waiting
    from plaunch.process.binding import Binder
    from plaunch.process.contexts.context import PContext, ProcessExit
    from plaunch.process.failures.failure import ProcessFailure
    from plaunch.process.stopping.signals import SignalPolicy
    from plaunch.process.stopping.stop_sequence import StopStep
    from plaunch.process.streams.logs import LogsSpecs
    from plaunch.process.streams.traffic import Traffic

logger = logging.getLogger("plaunch")

DEFAULT_PREFIX = "[${role_name}${local_rank}]:"


def _nothing_more(worker: object, env: Mapping[str, str]) -> Mapping[str, str]:
    del worker, env
    return {}


class LocalElasticAgent(SimpleElasticAgent):
    """Runs the workers of one node as processes of this host; the name is torchrun's.

    Args:
        spec: what to run.
        logs_specs: where the workers' streams go; by default the console, or what the older
            arguments `log_dir`, `redirects` and `tee` of `spec` say.
        start_method: `spawn`, `fork` or `forkserver`, for functions.
        exit_barrier_timeout: how long to wait for the other nodes after success, in seconds.
        log_line_prefix_template: the prefix of teed lines; `${role_name}`, `${local_rank}`,
            `${rank}`, `${hostname}`, `${attempt}` and `${time}` are replaced (torchrun knows the
            first three).
        shutdown_timeout: how long workers may take to stop before they are killed, in seconds, on
            every path (torchrun: only when a signal ends the job).
        health_check_server: is started before the first round and stopped at the end of the run;
            by default the one that `TORCHELASTIC_HEALTH_CHECK_PORT` asks for.
        signal_policy: what signals mean; by default those of `TORCHELASTIC_SIGNALS_TO_HANDLE` stop
            the job.
        notify: is called at every moment of `plaunch.agent.moments`.
        worker_env: is asked for more variables for each worker.
        uninterruptible_state_timeout: seconds that a worker may be in uninterruptible sleep before
            the job ends with `UnkillableWorkerError`; 0 means for ever, and None what
            `TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT` says.
        keep_daemons: spare what workers leave behind when all of them have succeeded.
        waiting: says what a round waits for, and ends a first one that takes too long.
        alive: is told whenever the loop goes to sleep and wakes.
        traffic: counts the workers' output that passes through the launcher.
        binder: gives workers their devices and processors; by default what `spec` says of them.

    Raises:
        UsageError: both `logs_specs` and the older arguments are given, or a time cannot be used,
            or workers cannot have the devices or the processors that `spec` asks for.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs | None = None,
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float = 30,
        health_check_server: HealthCheckServer | None = None,
        uninterruptible_state_timeout: float | None = None,
        *,
        signal_policy: SignalPolicy | None = None,
        notify: moments.Notify | None = None,
        worker_env: moments.WorkerEnv = _nothing_more,
        keep_daemons: bool = False,
        waiting: Waiting | None = None,
        alive: Alive | None = None,
        traffic: Traffic | None = None,
        binder: Binder | None = None,
    ) -> None:
        super().__init__(
            spec,
            exit_barrier_timeout,
            shutdown_timeout,
            signal_policy=signal_policy,
            notify=notify,
            waiting=waiting,
            alive=alive,
        )
        self._traffic = traffic
        self._logs_specs = logs_specs or _logs_specs_of(spec)
        if logs_specs is not None and _has_older_arguments(spec):
            raise UsageError(
                "logs are configured twice: by logs_specs and by log_dir, redirects or tee of the "
                "WorkerSpec; keep one"
            )
        self._health_check_server = health_check_server
        self._watchdog = Watchdog()
        self._start_method = start_method
        self._log_line_prefix_template = log_line_prefix_template or DEFAULT_PREFIX
        self._worker_env = worker_env
        self._binder = binder or default_binder(
            spec.numa_options, spec.devices, spec.virtual_local_rank
        )
        if self._binder is not None:
            # A node that cannot start its workers says so before it joins the others.
            self._binder.plan(spec.local_world_size)
        self._reaper = Reaper(keep_daemons=keep_daemons)
        self._store = WorkerStore(self._reaper)
        self._lost_store: ProcessFailure | None = None  # what that does to this round
        self._sleep_watch = _sleep_watch(uninterruptible_state_timeout)
        self._unkillable: UnkillableWorkerError | None = None
        self._pcontext: PContext | None = None
        self._gone: set[int] = set()  # local ranks of this round that have ended
        self._cause = ""  # which worker of this round failed first, and how

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers to the end; see `ElasticAgent.run`."""
        server = self._health_check_server or find_server(self._get_alive_time)
        if server is None:
            return super().run(role)
        server.start()
        try:
            return super().run(role)
        finally:
            server.stop()

    def _get_alive_time(self) -> int:
        return min(self._watchdog.alive_time(), int(self._alive.last_progress()))

    @prof
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        args: dict[int, tuple[Any, ...]] = {}
        envs: dict[int, dict[str, str]] = {}
        prefixes: dict[int, str] = {}
        for worker in worker_group.workers:
            rank = worker.local_rank
            args[rank] = tuple(macros.substitute(list(spec.args), str(rank)))
            envs[rank] = self._environment(worker_group, worker)
            # `${time}` is left to the streams, which know when a line was read.
            prefixes[rank] = Template(self._log_line_prefix_template).safe_substitute(
                role_name=spec.role,
                rank=worker.global_rank,
                local_rank=rank,
                hostname=self._host,
                attempt=self._machine.attempt,
            )
        if spec.entrypoint is None:
            raise UsageError("a WorkerSpec needs an entrypoint: a function or a program")
        self._gone.clear()
        self._cause = ""
        self._lost_store = None
        open_store(self._store, worker_group, envs)
        self._pcontext = start_processes(
            name=spec.role,
            entrypoint=spec.entrypoint,
            args=args,
            envs=envs,
            logs_specs=self._logs_specs,
            log_line_prefixes=prefixes,
            start_method=self._start_method,
            duplicate_stdout_filters=spec.duplicate_stdout_filters,
            duplicate_stderr_filters=spec.duplicate_stderr_filters,
            shutdown_timeout=self._shutdown_timeout,
            handle_signals=False,
            reaper=self._reaper,
            binder=self._binder,
            traffic=self._traffic,
            private_fds=self._store.own_fds(),
        )
        self._store.watch(self._pcontext.pids().values())
        if isinstance(self._pcontext, SupervisedContext):
            self._pcontext.on_exit = self._tell_end
            self._pcontext.on_stop_step = self._tell_stop_step
        return dict(self._pcontext.pids())

    def _by_global_rank(self, failures: Mapping[int, ProcessFailure]) -> dict[int, ProcessFailure]:
        ranks = {worker.local_rank: worker.global_rank for worker in self._worker_group.workers}
        for rank, failure in failures.items():
            failure.global_rank = ranks[rank]
            failure.host = self._host
        self._watchdog.explain(failures)
        return {ranks[rank]: failure for rank, failure in failures.items()}

    def _environment(self, group: WorkerGroup, worker: Worker) -> dict[str, str]:
        state = self._machine
        env = worker_environment(
            group,
            worker,
            attempt=state.attempt,
            round=state.round,
            environ=os.environ,
            binder=self._binder,
        )
        env.update(self._watchdog.environment(env["TORCHELASTIC_RUN_ID"]))
        env.update(self._worker_env(describe_worker(worker), env))
        return env

    @prof
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        try:
            self._close(self._soft_signal, self._shutdown_timeout)
        except UnkillableWorkerError:
            if self._unkillable is None:
                raise
        finally:
            self._store.close()  # none of the workers needs it any more
        self._raise_unkillable()

    def _stops_in_steps(self) -> bool:
        # A subclass may stop its workers in a way of its own, which may block.
        is_ours = type(self)._stop_workers is LocalElasticAgent._stop_workers
        return is_ours and isinstance(self._pcontext, SupervisedContext)

    def _begin_stop(self, death_sig: signal.Signals) -> WorkersStop | None:
        if not self._stops_in_steps():
            return super()._begin_stop(death_sig)
        return self._begin_steps(death_sig, self._end_stop)

    def _begin_clearing(self) -> WorkersStop | None:
        # The workers' store stays, for those of other nodes.
        return self._begin_steps(signal.SIGTERM, self._end_clearing)

    def _begin_steps(
        self, death_sig: signal.Signals, at_end: Callable[[], None]
    ) -> WorkersStop | None:
        if not isinstance(self._pcontext, SupervisedContext):
            return None  # it has done so itself
        return ContextStop(self._pcontext.begin_stop(death_sig, self._shutdown_timeout), at_end)

    def _end_stop(self) -> None:
        self._store.close()  # none of the workers needs it any more
        self._end_clearing()

    def _end_clearing(self) -> None:
        result = self._pcontext.look() if isinstance(self._pcontext, SupervisedContext) else None
        self._tell_exits(result)
        self._raise_unkillable()

    def _raise_unkillable(self) -> None:
        if self._unkillable is not None:
            # Even if it could be ended after all: nobody knows for how long the host holds out.
            raise self._unkillable

    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, timeout: float | None = None
    ) -> None:
        try:
            self._close(death_sig, self._shutdown_timeout if timeout is None else timeout)
        finally:
            self._store.close()
            self._watchdog.stop()
            self._reaper.close()

    def _close(self, death_sig: signal.Signals, timeout: float) -> None:
        if self._pcontext is None:
            return
        try:
            self._pcontext.close(death_sig, timeout)
        finally:
            self._tell_exits(None)

    @prof
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._pcontext is None:
            return RunResult(WorkerState.UNKNOWN)
        lost = self._store.tend()
        if isinstance(self._pcontext, SupervisedContext):
            result = self._pcontext.look()
            if result is None:
                self._tell_exits(None)  # the others are told of when more is known of them
        else:
            result = self._pcontext.wait(0)
            self._tell_exits(result)
        # Workers that have all succeeded do not miss it any more.
        if lost is not None and (result is None or result.failures):
            if isinstance(lost, WorkerStoreHostError):
                raise lost  # no restart mends it
            self._lost_store = lost_store(lost)
            return self._run_result_of(result or RunProcsResult())
        if result is None:
            stuck = None
            if self._sleep_watch is not None:
                stuck = self._check_uninterruptible_state_timeout(
                    worker_group, self._sleep_watch.timeout
                )
            return stuck or RunResult(WorkerState.HEALTHY)
        return self._run_result_of(result)

    def _stopped_result(self) -> RunResult | None:
        if not isinstance(self._pcontext, SupervisedContext):
            return None
        result = self._pcontext.look()
        return None if result is None else self._run_result_of(result)

    def _run_result_of(self, result: RunProcsResult) -> RunResult:
        ranks = {worker.local_rank: worker.global_rank for worker in self._worker_group.workers}
        failures = self._by_global_rank(result.failures)
        if self._lost_store is not None:
            failures = {self._lost_store.local_rank: self._lost_store, **failures}
        return RunResult(
            state=WorkerState.FAILED if failures else WorkerState.SUCCEEDED,
            return_values={ranks[rank]: value for rank, value in result.return_values.items()},
            failures=failures,
            stopped={ranks[rank]: code for rank, code in result.stopped.items()},
        )

    def _check_uninterruptible_state_timeout(
        self, worker_group: WorkerGroup, timeout: float
    ) -> RunResult | None:
        """Give workers up that are stuck in the kernel; None if there are none."""
        del worker_group
        if self._pcontext is None or self._sleep_watch is None:
            return None
        pids = {rank: pid for rank, pid in self._pcontext.pids().items() if rank not in self._gone}
        stuck = self._sleep_watch.find_stuck(pids)
        if not stuck:
            return None
        named = "; ".join(
            f"local rank {rank}: {describe_process(pids[rank])}, for {seconds:.1f} s"
            for rank, seconds in sorted(stuck.items())
        )
        self._unkillable = UnkillableWorkerError(
            f"workers sleep uninterruptibly in the kernel for more than {timeout:g} s: {named}. "
            "They are not waited for, and no other workers are started on this host, which "
            "probably needs a restart"
        )
        logger.error("%s", self._unkillable)
        for rank in stuck:
            if isinstance(self._pcontext, SupervisedContext):
                self._pcontext.abandon(rank)
        # A second generation would meet the first one on the same devices.
        self._machine = replace(self._machine, max_restarts=self._machine.attempt)
        return RunResult(WorkerState.UNHEALTHY)

    def _exit_fds(self) -> Sequence[int] | None:
        fds = None if self._pcontext is None else self._pcontext.exit_fds()
        return None if fds is None else [*fds, *self._store.fds()]

    def _due(self) -> float | None:
        return self._store.due()

    def _tend(self) -> None:
        lost = self._store.tend()
        if lost is not None:
            logger.warning("%s", lost)

    def _exit_barrier(self) -> None:
        super()._exit_barrier()
        if (self._worker_group.group_world_size or 1) > 1:
            self._store.wait_for_guests(self._exit_barrier_timeout)

    def _exits_suffice(self) -> bool:
        # A subclass may look at anything, and expects to be asked as often as under torchrun.
        is_ours = type(self)._monitor_workers is LocalElasticAgent._monitor_workers
        return is_ours and self._sleep_watch is None

    def _signal_workers(self, signum: signal.Signals) -> None:
        if self._pcontext is None:
            return
        for rank, pid in self._pcontext.pids().items():
            if rank in self._gone:
                continue
            try:
                self._pcontext.send_signal(rank, signum)
            except PermissionError:
                logger.warning(
                    "may not send %s to %s; it runs as another user",
                    signum.name,
                    describe_process(pid),
                )

    def _is_of_use(self) -> bool:
        return self._unkillable is None

    def _tell_exits(self, result: RunProcsResult | None) -> None:
        if self._pcontext is None:
            return
        for process_exit in self._pcontext.take_exits():
            self._gone.add(process_exit.local_rank)
            failure = None if result is None else result.failures.get(process_exit.local_rank)
            self._tell_exit(process_exit, failure)

    def _tell_exit(self, process_exit: ProcessExit, failure: ProcessFailure | None) -> None:
        exited = self._describe_exit(process_exit, failure)
        self._teller.tell(moments.WorkerExited, exited)

    def _tell_end(self, process_exit: ProcessExit, failure: ProcessFailure | None) -> None:
        self._gone.add(process_exit.local_rank)
        exited = self._describe_exit(process_exit, failure)
        self._teller.tell(moments.WorkerEnded, exited, process_exit.timestamp)
        if failure is not None and not self._cause:
            rank = exited.worker.global_rank
            self._cause = f"rank {rank} (pid {failure.pid}) failed: {failure.describe_exit()}"

    def _tell_stop_step(self, step: StopStep) -> None:
        self._teller.tell(moments.Stopping, step)
        if step.step == "waiting" and self._cause and self._job is None:
            # The report will say so, too, but only when the stop is over.
            logger.warning("they are stopped because %s", self._cause)

    def _describe_exit(
        self, process_exit: ProcessExit, failure: ProcessFailure | None
    ) -> WorkerExit:
        return WorkerExit(
            worker=describe_worker(self._worker_group.workers[process_exit.local_rank]),
            exitcode=process_exit.exitcode,
            stopped=process_exit.stopped,
            failure=failure,
        )


def _sleep_watch(timeout: float | None) -> UninterruptibleWatch | None:
    if timeout is None:
        timeout = uninterruptible_timeout_of(os.environ)
    else:
        PATIENCE.check(timeout, "uninterruptible_state_timeout")
    return UninterruptibleWatch(timeout) if timeout > 0 else None


def _has_older_arguments(spec: WorkerSpec) -> bool:
    return not (spec.log_dir is None and spec.redirects is None and spec.tee is None)


def _logs_specs_of(spec: WorkerSpec) -> LogsSpecs:
    from plaunch.process.streams.layout import RunLayout  # noqa: PLC0415 - agents built by hand only

    return RunLayout(
        log_dir=spec.log_dir,
        redirects=Std.NONE if spec.redirects is None else spec.redirects,
        tee=Std.NONE if spec.tee is None else spec.tee,
    )
