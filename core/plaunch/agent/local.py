"""The agent that runs its workers as local processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from string import Template
from typing import TYPE_CHECKING, Any, Protocol

from plaunch import parts
from plaunch.agent.agent import DEFAULT_ROLE, SimpleElasticAgent
from plaunch.agent.local_workers import LocalWorkers
from plaunch.agent.worker import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    describe_worker,
    macros,
    worker_environment,
)
from plaunch.durations import EXIT_BARRIER_TIMEOUT, PATIENCE, SHUTDOWN_TIMEOUT
from plaunch.errors import UsageError
from plaunch.process.components import default_binder
from plaunch.process.logs import Std, default_logs_specs
from plaunch.process.start import start_processes
from plaunch.process.watches import uninterruptible_timeout_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.agent.components import AgentServices
    from plaunch.agent.notifier import Notifier
    from plaunch.agent.workers import Workers
    from plaunch.process.logs import LogsSpecs

DEFAULT_PREFIX = "[${role_name}${local_rank}]:"
HEALTH_VARIABLE = "TORCHELASTIC_HEALTH_CHECK_PORT"


class HealthServer(Protocol):
    """Reports to an outside watcher that an agent is alive; torchrun's has these methods."""

    def start(self) -> None:
        """Begin to serve; before the first round."""

    def stop(self) -> None:
        """End serving; at the end of the run."""


class LocalElasticAgent(SimpleElasticAgent):
    """Runs the workers of one node as processes of this host; the name is torchrun's.

    Args:
        spec: what to run.
        logs_specs: where the workers' streams go; by default the console, or what the older
            arguments `log_dir`, `redirects` and `tee` of `spec` say.
        start_method, exit_barrier_timeout, shutdown_timeout: as in `LaunchConfig`.
        log_line_prefix_template: the same, but None means `[${role_name}${local_rank}]:`.
        health_check_server: is started before the first round and stopped at the end of the run;
            by default the one that `TORCHELASTIC_HEALTH_CHECK_PORT` asks for.
        uninterruptible_state_timeout: seconds that a worker may be in uninterruptible sleep before
            the job ends with `UnkillableWorkerError`; 0 means no limit, and None the value of
            `TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT`.
        services: what a launch gives its agent beyond torchrun's arguments.

    Raises:
        UsageError: both `logs_specs` and the older arguments are given, or a time cannot be used,
            or workers cannot have the devices or the processors that `spec` asks for.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs | None = None,
        start_method: str = "spawn",
        exit_barrier_timeout: float = EXIT_BARRIER_TIMEOUT,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float = SHUTDOWN_TIMEOUT,
        health_check_server: HealthServer | None = None,
        uninterruptible_state_timeout: float | None = None,
        *,
        services: AgentServices | None = None,
    ) -> None:
        self._sleep_timeout = _sleep_timeout(uninterruptible_state_timeout)
        super().__init__(spec, exit_barrier_timeout, shutdown_timeout, services=services)
        self._logs_specs = logs_specs or _logs_specs_of(spec)
        if logs_specs is not None and _has_older_arguments(spec):
            raise UsageError(
                "logs are configured twice: by logs_specs and by log_dir, redirects or tee of the "
                "WorkerSpec; keep one"
            )
        self._health_check_server = health_check_server
        self._start_method = start_method
        self._log_line_prefix_template = log_line_prefix_template or DEFAULT_PREFIX
        self._binder = self._services.binder or default_binder(
            spec.numa_options, spec.devices, spec.virtual_local_rank
        )
        if self._binder is not None:
            # A node that cannot start its workers must fail before it joins the others.
            self._binder.plan(spec.local_world_size)

    def _create_workers(self, group: WorkerGroup, notifier: Notifier) -> Workers:
        self._local = LocalWorkers(
            group,
            notifier,
            self._services,
            lambda: self._start_workers(group),
            lambda: self._monitor_workers(group),
            shutdown_timeout=self._shutdown_timeout,
            sleep_timeout=self._sleep_timeout,
        )
        kind = type(self)
        if (
            kind._monitor_workers is LocalElasticAgent._monitor_workers
            and kind._stop_workers is LocalElasticAgent._stop_workers
        ):
            return self._local
        adapted: Workers = parts.load_part(parts.POLLED_WORKERS)(self, group, self._local)
        return adapted

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers to the end; see `ElasticAgent.run`."""
        server = self._health_check_server
        if server is None and HEALTH_VARIABLE in os.environ:
            server = parts.load_part(parts.FIND_HEALTH_CHECK)(self._get_alive_time)
        if server is None:
            return super().run(role)
        server.start()
        try:
            return super().run(role)
        finally:
            server.stop()

    def _get_alive_time(self) -> int:
        return int(self._watchdog.last_progress())

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        state, hostname = self._status.state, socket.gethostname()
        args: dict[int, tuple[Any, ...]] = {}
        envs: dict[int, dict[str, str]] = {}
        prefixes: dict[int, str] = {}
        for worker in worker_group.workers:
            rank = worker.local_rank
            args[rank] = tuple(macros.substitute(list(spec.args), str(rank)))
            envs[rank] = env = worker_environment(
                worker_group,
                worker,
                attempt=state.attempt,
                round=state.round,
                environ=os.environ,
                binder=self._binder,
            )
            if self._services.worker_env is not None:
                env.update(self._services.worker_env(describe_worker(worker), env))
            # The streams replace `${time}`, since they know when a line was read.
            prefixes[rank] = Template(self._log_line_prefix_template).safe_substitute(
                role_name=spec.role,
                rank=worker.global_rank,
                local_rank=rank,
                hostname=hostname,
                attempt=state.attempt,
            )
        return self._local.launch(
            envs,
            lambda components: start_processes(
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
                binder=self._binder,
                components=components,
            ),
        )

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._local.stop(self._status.soft_signal)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Prepare the reaper before `run`, since extensions may start threads before that."""
        self._local.reaper.guards.prepare()
        try:
            yield
        finally:
            self._local.reaper.close()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        return self._local.monitor()

    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, timeout: float | None = None
    ) -> None:
        self._local.shut_down(death_sig, timeout)


def _sleep_timeout(timeout: float | None) -> float:
    if timeout is None:
        return uninterruptible_timeout_of(os.environ)
    PATIENCE.check(timeout, "uninterruptible_state_timeout")
    return timeout


def _has_older_arguments(spec: WorkerSpec) -> bool:
    return not (spec.log_dir is None and spec.redirects is None and spec.tee is None)


def _logs_specs_of(spec: WorkerSpec) -> LogsSpecs:
    return default_logs_specs(spec.log_dir, spec.redirects or Std.NONE, spec.tee or Std.NONE)
