"""Launching from code: a configuration and an entrypoint in, results or a typed exception out."""

from __future__ import annotations

import functools
import logging
import math
import os
from typing import TYPE_CHECKING, Any

from plaunch import components, parts
from plaunch.agent.alive import TURN_BOUND, Alive
from plaunch.agent.closing import failure_of_job, release_rendezvous, shut_down
from plaunch.agent.local import HEALTH_VARIABLE, LocalElasticAgent
from plaunch.agent.notifications import BeforeWorkers, Stopping, WorkersStarted
from plaunch.agent.wait_reporter import WaitReporter
from plaunch.agent.worker import name_entrypoint
from plaunch.config import make_run_id
from plaunch.errors import (
    NodeExcludedError,
    SignalException,
    UnkillableWorkerError,
    UsageError,
)
from plaunch.plugin.components import (
    find_binder,
    find_starter,
    find_worker_env,
    find_worker_store,
    notify,
)
from plaunch.plugin.extensions import (
    AgentControl,
    EventLog,
    ExtensionRunner,
    create_extensions,
    ending,
    snapshot_of_launch,
)
from plaunch.plugin.kinds import LOGS_SPECS, SIGNAL_POLICIES
from plaunch.plugin.manager import PluginManager
from plaunch.plugin.policies import LaunchRestartPolicy, LaunchSignalPolicy
from plaunch.process.streams.api import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.agent.local import HealthCheckServer
    from plaunch.agent.notifications import LaunchEvents, Notification, Notify
    from plaunch.agent.worker import RunResult, WorkerInfo
    from plaunch.agent.worker_store import OpenStore
    from plaunch.config import LaunchConfig
    from plaunch.events import Event
    from plaunch.health import HealthChecks
    from plaunch.plugin.context import PluginContext
    from plaunch.process.binding import Binder
    from plaunch.process.starting import Starter
    from plaunch.process.stopping.signals import SignalPolicy
    from plaunch.process.streams.logs import LogsSpecs
    from plaunch.rendezvous.api import RendezvousHandler

logger = logging.getLogger("plaunch")

# Plugins with options: of event handlers; and one that runs after a failure without an option.
EVENT_OPTIONS, FAILURE_BUNDLE = "events", "failure_bundle"


class elastic_launch:  # noqa: N801 - the name is torchrun's
    """Launches workers on this node, as torchrun's class of the name does.

    `elastic_launch(config, entrypoint)(*args)` runs `entrypoint` (a function, or a program such as
    "python") with `args` in every worker and returns each worker's value by global rank; programs
    return None. `plugins` are more plugins for this one launch.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Callable[..., Any] | str | None,
        health_check_server: HealthCheckServer | None = None,
        *,
        plugins: Sequence[object] = (),
    ) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server
        self._plugins = plugins

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Run the workers to the end; see `launch_agent`."""
        return launch_agent(
            self._config,
            self._entrypoint,
            list(args),
            self._health_check_server,
            plugins=self._plugins,
        )


def launch_agent(
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | str | None,
    args: list[Any],
    health_check_server: HealthCheckServer | None = None,
    *,
    plugins: Sequence[object] = (),
    manager: PluginManager | None = None,
    show: Callable[[str], None] | None = None,
    started: Callable[[], None] | None = None,
) -> dict[int, Any]:
    """Run `entrypoint` with `args` in the workers of this node and wait for the end.

    Args:
        config: the settings; a missing `run_id` is made up and written into it.
        entrypoint: a function, or the path of a program.
        args: arguments of every worker; `${local_rank}` in a string is replaced.
        health_check_server: is started before the first round and stopped at the end; by default
            the one that `TORCHELASTIC_HEALTH_CHECK_PORT` asks for.
        plugins: plugins for this launch alone, beside the installed ones.
        manager: a plugin manager to use instead of a fresh one; `plugins` is then not allowed.
        show: shows what the launch waits for, in the place of what it showed before; an empty text
            takes that away. By default it is logged from time to time.
        started: is called whenever workers have been started.

    Returns:
        The return value of each worker of this node by global rank; None for programs.

    Raises:
        ChildFailedError: workers failed and no restart was left.
        SignalException: a stop signal ended the job.
        UsageError: a setting cannot be used; nothing was started.
        PluginError: a plugin cannot be loaded, or broke the rules.
        RendezvousError: the nodes could not meet.
    """
    if manager is not None and plugins:
        raise UsageError("give plugins to launch_agent or to its manager, not to both")
    if entrypoint is None:
        raise UsageError("nothing to launch: the entrypoint is None")
    if manager is None:
        manager = PluginManager.create(plugins)
    if not config.run_id:
        config.run_id = make_run_id()
    return _Launch(config, entrypoint, args, manager, show, started, health_check_server).run()


def _has_own_health_check() -> bool:
    """Whether the site has a health check server in the place of torchrun's."""
    is_sites_own = parts.find_part(parts.HAS_HEALTH_CHECK)
    return is_sites_own is not None and bool(is_sites_own())


class _Launch:
    """One launch: the components, chosen and created in the order in which users expect errors."""

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Callable[..., Any] | str,
        args: list[Any],
        manager: PluginManager,
        show: Callable[[str], None] | None,
        started: Callable[[], None] | None,
        health_check_server: HealthCheckServer | None,
    ) -> None:
        self._health_check_server = health_check_server
        self._started = started
        self._waiting = WaitReporter(config.start_timeout, show=show)
        self._config = config
        self._manager = manager
        self._entrypoint = entrypoint
        self._args = args
        self._name = name_entrypoint(entrypoint, args)
        self._grace = config.shutdown_timeout or 0.0  # seconds; the settings have a number by now
        self._traffic = Traffic()
        self._alive = Alive(self._grace + TURN_BOUND, progress=self._last_progress)
        self._agent: LocalElasticAgent | None = None
        self._events: LaunchEvents | None = None
        self._extending: list[ExtensionRunner] = []
        self._binder: Binder | None = None
        self._open_store: OpenStore | None = None
        self._starter: Starter | None = None
        self._restart_policy: LaunchRestartPolicy | None = None
        self._result: RunResult | None = None
        self._told = EventLog()
        self._slow_stops: Notify | None = None
        self._health_checks: HealthChecks | None = None

    def run(self) -> dict[int, Any]:
        config, manager = self._config, self._manager
        components.check_endpoint(config, manager)
        logs_specs = config.logs_specs
        if logs_specs is None:
            logs_specs = manager.make(LOGS_SPECS, LOGS_SPECS.default)
        context = config.context(logs_specs)
        environ = dict(os.environ)
        if HEALTH_VARIABLE in environ and (
            self._health_check_server is not None or _has_own_health_check()
        ):
            del environ[HEALTH_VARIABLE]  # which asks for that server, and no other
        asked = manager.use_options(config.options, environ)
        manager.get(SIGNAL_POLICIES, config.signal_policy)  # an unknown name is the first error
        create_events = components.find_events(config, manager, is_wanted=EVENT_OPTIONS in asked)
        made = manager.make(SIGNAL_POLICIES, config.signal_policy, context)
        policy = LaunchSignalPolicy(made, manager.who_made(made))
        self._restart_policy = LaunchRestartPolicy(manager, context)
        if config.health_checks:
            self._health_checks = parts.load_part(parts.HEALTH_CHECKS)(manager, context)
        manager.stop_waiting_when(self._has_stop)
        self._extending = create_extensions(manager, context)
        self._binder = find_binder(manager, context)
        self._open_store = find_worker_store(manager, context)
        self._starter = find_starter(manager, context)
        if create_events is None and any(item.takes_events for item in self._extending):
            create_events = components.find_events(config, manager, is_wanted=True)
        try:
            with ending(self._extending, self._told):
                if create_events is None:
                    return self._run_agent(logs_specs, policy)
                self._events = create_events(
                    self._name,
                    context,
                    lambda: logs_specs.create_run_dir(config.run_id),
                    [item for item in self._extending if item.takes_events],
                )
                with self._events.of_launch():
                    return self._run_agent(logs_specs, policy)
        except SignalException:
            raise
        except Exception:
            if FAILURE_BUNDLE not in asked:
                self._look_back(context)
            raise

    def _look_back(self, context: PluginContext) -> None:
        """Have a failure looked at, unless that is blocked; a launch that succeeds has no part."""
        declared = [one.name for one in self._manager.plugin_options()]
        if self._agent is None or FAILURE_BUNDLE not in declared:
            return
        create = parts.find_part(parts.AFTER_FAILURE)
        if create is None:
            return
        extension = create(context)
        item = ExtensionRunner(FAILURE_BUNDLE, extension)
        item.result, snapshot = self._result, self._agent.snapshot
        item.start(AgentControl(self._agent, item.who, snapshot, late_events=self._late_events()))
        item.end()

    def _late_events(self) -> Callable[[], Callable[[], list[Event]]]:
        return components.late_events(self._config, self._name, self._told)

    def _has_stop(self) -> bool:
        self._keep_alive()
        agent = self._agent
        return agent is not None and agent.is_asked_to_end()

    def _keep_alive(self) -> None:
        """The loop waits for a plugin, whose turn is bounded, but not how many there are."""
        self._alive.waits()

    def _last_progress(self) -> float:
        # A slow console may take long to show the last of the output. Only then is it a sign of
        # life: while workers run, others than the agent's loop look after their output.
        agent = self._agent
        return -math.inf if agent is None or agent.snapshot().pids else self._traffic.last_shown()

    def _run_agent(self, logs_specs: LogsSpecs, policy: SignalPolicy) -> dict[int, Any]:
        config = self._config
        checks = self._health_checks
        checking = 0.0 if checks is None else checks.timeout
        handler = components.create_rendezvous(
            config, self._manager, self._restart_policy, checking
        )
        release: Callable[[], bool] = lambda: shut_down(handler, policy)  # noqa: E731
        succeeded = False
        template = config.log_line_prefix_template
        if template is None:
            template = os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
        try:
            self._agent = agent = LocalElasticAgent(
                spec=components.worker_spec(
                    config,
                    handler,
                    self._entrypoint,
                    self._args,
                    worker_store="rank0" if self._open_store is None else "agent",
                ),
                logs_specs=logs_specs,
                start_method=config.start_method,
                exit_barrier_timeout=config.exit_barrier_timeout,
                log_line_prefix_template=template,
                shutdown_timeout=self._grace,
                health_check_server=self._health_check_server,
                signal_policy=policy,
                notify=self._notify,
                worker_env=self._worker_env,
                keep_daemons=config.keep_daemons,
                waiting=self._waiting,
                alive=self._alive,
                traffic=self._traffic,
                binder=self._binder,
                open_store=self._open_store,
                starter=self._starter,
                restart_policy=self._restart_policy,
                health_checks=checks,
            )
            with agent.guarded():
                self._start_extensions(agent, handler)
                if self._starter is not None:
                    command = components.worker_command(config, self._entrypoint, self._args)
                    self._starter.begin(command, {**os.environ, **config.worker_env})
                with self._manager.culprits.refusing_exits():
                    result = agent.run()
            self._result = result
            for item in self._extending:
                item.result = result
            if agent.is_asked_to_end() and not agent.has_ended_job:
                release = handler.leave  # what is still to be waited for is not any longer
            values = self._conclude(result, logs_specs)
            succeeded = True
            return values
        except NodeExcludedError as error:
            failed = None if self._agent is None else self._agent.result_of_workers
            if failed is None or not failed.is_failed():
                raise
            raise error from failure_of_job(self._name, failed, logs_specs)
        except (SignalException, UnkillableWorkerError):
            # The job may go on without this node, unless that has ended it for all.
            if self._agent is None or not self._agent.has_ended_job:
                release = handler.leave
            raise
        finally:
            if checks is not None:
                checks.close()
            if self._starter is not None:
                self._starter.close()
            try:
                components.close_logs(
                    logs_specs, self._manager, self._has_stop, succeeded=succeeded
                )
            finally:
                release_rendezvous(release)

    def _start_extensions(self, agent: LocalElasticAgent, handler: RendezvousHandler) -> None:
        snapshot = functools.partial(
            snapshot_of_launch, agent, handler, self._alive, self._traffic, self._events
        )
        for item in self._extending:
            item.start(AgentControl(agent, item.who, snapshot, handler, self._late_events()))
            if self._events is not None and item.takes_events:
                self._events.start(item)

    def _notify(self, notification: Notification) -> None:
        """Notify hooks, event handlers and extensions of what the agent does."""
        self._keep_alive()
        if isinstance(notification, Stopping) and notification.step.step == "waiting":
            self._slow_stops = self._slow_stops or components.watch_slow_stops(
                self._config, self._manager
            )
        if self._slow_stops is not None:
            self._slow_stops(notification)
        self._told.add(notification)
        events = self._events
        if isinstance(notification, WorkersStarted):
            if events is not None:
                events.release()
            for item in self._extending:
                item.release()
            if self._started is not None:
                self._started()
        notify(self._manager, notification)
        if events is not None:
            events(notification)
        forks = self._config.start_method == "fork" and callable(self._entrypoint)
        if forks and isinstance(notification, BeforeWorkers):
            self._prepare_fork()

    def _prepare_fork(self) -> None:
        """End the threads of plugins, which may hold locks; say which ones stay."""
        if self._events is not None:
            self._events.rest()
        for item in self._extending:
            item.rest()
        for who in self._manager.left_behind():
            logger.warning(
                "%s has not returned from a hook; workers are forked meanwhile, and a lock that "
                "the hook holds stays locked in them (use --start-method=spawn to avoid this)",
                who,
            )

    def _worker_env(self, worker: WorkerInfo, env: Mapping[str, str]) -> Mapping[str, str]:
        self._keep_alive()
        added = find_worker_env(self._manager, worker, env)
        return {**self._config.worker_env, **added}

    def _conclude(self, result: RunResult, logs_specs: LogsSpecs) -> dict[int, Any]:
        if result.is_failed():
            raise failure_of_job(self._name, result, logs_specs)
        return result.return_values
