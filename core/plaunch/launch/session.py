"""One launch: the agent, with everything around it that starts and ends with it."""

from __future__ import annotations

import functools
import logging
import math
import os
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plaunch.agent.components import AgentServices
from plaunch.agent.local import LocalElasticAgent
from plaunch.agent.messages import WaitReporter, read_wait
from plaunch.agent.notifications import BeforeWorkers, Stopping, WorkersStarted
from plaunch.agent.notifier import EventLog
from plaunch.agent.poller import TURN_BOUND, LoopWatchdog
from plaunch.agent.rounds import release_rendezvous, shut_down
from plaunch.errors import (
    NodeExcludedError,
    PlaunchError,
    SignalException,
    UnkillableWorkerError,
)
from plaunch.launch.prepare import create_rendezvous
from plaunch.plugin.contributions import LaunchLogsSpecs, find_worker_env, notify
from plaunch.plugin.extensions import AgentControl, snapshot_of_launch
from plaunch.plugin.kinds import RENDEZVOUS
from plaunch.process.failure import NOT_AVAILABLE
from plaunch.process.streams import OutputStats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.agent.notifications import Notification, Notify
    from plaunch.agent.worker import RunResult
    from plaunch.launch.prepare import LaunchComponents, LaunchRequest
    from plaunch.plugin.extensions import LaunchEvents
    from plaunch.plugin.manager import PluginManager
    from plaunch.process.child_failed import ChildFailedError
    from plaunch.process.components import WorkerInfo
    from plaunch.rendezvous.api import RendezvousHandler

logger = logging.getLogger("plaunch")

CLOSE_TIMEOUT = 60.0  # seconds to wait for the logs spec to clean up
CLOSE_TIMEOUT_AFTER_STOP = 10.0  # seconds for the same when a signal has ended the job


class LaunchSession:
    """Runs one launch to its end.

    Args:
        request: what to run.
        manager: notifies plugins.
        components: of this launch.
    """

    def __init__(
        self, request: LaunchRequest, manager: PluginManager, components: LaunchComponents
    ) -> None:
        self._request = request
        self._manager = manager
        self._guard = guard = manager.guard
        self._components = components
        self._grace = request.config.shutdown_timeout or 0.0  # seconds
        self._output_stats = OutputStats()
        self._watchdog = LoopWatchdog(self._grace + TURN_BOUND, progress=self._last_progress)
        self._logs_specs = LaunchLogsSpecs(
            components.logs_specs, guard, manager.who_made(components.logs_specs)
        )
        backend = manager.who(RENDEZVOUS, request.config.rdzv_backend)
        self._wait_reporter = WaitReporter(
            request.config.start_timeout,
            show=request.show,
            read=guard.limited(backend, "describe_wait", read_wait),
        )
        self._log = EventLog()
        self._agent: LocalElasticAgent | None = None
        self._events: LaunchEvents | None = None
        self._result: RunResult | None = None
        self._leaves = False  # whether the job may continue without this node
        self._has_succeeded = False

    def run(self) -> dict[int, Any]:
        """Run the workers; the value of each by global rank.

        Raises:
            PlaunchError: see `launch_agent`.
        """
        try:
            with ExitStack() as stack:
                self._subscribe()
                stack.push(self._finish)
                stack.enter_context(self._manager.naming_plugins())
                self._log.add(self._request.started_notification())
                return self._run_agent(stack)
        except SignalException:
            raise
        except Exception:
            if self._agent is not None:
                self._run_after_failure(self._agent)
            raise
        finally:
            self._guard.rest()

    def _subscribe(self) -> None:
        """Subscribe what reads the log of the launch, in the order of the calls."""
        components, config, log = self._components, self._request.config, self._log
        log.subscribe(_SlowStops(self._create_listeners).handle)
        log.subscribe(self._release_threads)
        log.subscribe(functools.partial(notify, self._manager))
        if components.publish_events is not None:
            self._events = components.publish_events(
                log,
                components.context,
                lambda: self._logs_specs.create_run_dir(config.run_id),
                [item for item in components.extensions if item.takes_events],
            )
            log.subscribe(self._events.handle_notification)
        log.subscribe(self._rest_threads)

    def _run_agent(self, stack: ExitStack) -> dict[int, Any]:
        components, config = self._components, self._request.config
        checks, starter = components.health_checks, components.starter
        handler = create_rendezvous(
            config, self._manager, components.restart_policy, self._request.command
        )
        stack.callback(self._release, handler)
        stack.callback(self._close_logs)
        if starter is not None:
            stack.callback(starter.close)
        if checks is not None:
            stack.callback(checks.close)
        self._agent = agent = self._create_agent(handler)
        try:
            with agent.guarded():
                self._start_extensions(agent, handler)
                if starter is not None:
                    command = self._request.worker_command()
                    starter.begin(command, {**os.environ, **config.worker_variables()})
                result = self._result = agent.run()
            for item in components.extensions:
                item.note_result(result)
            is_over = agent.has_ended_job or agent.snapshot().verdict is not None
            self._leaves = agent.is_asked_to_end() and not is_over
            if result.is_failed():
                raise self._failure_of_job(result)
            self._has_succeeded = True
            return result.return_values
        except NodeExcludedError as error:
            failed = agent.result_of_workers
            if not failed.is_failed():
                raise
            raise error from self._failure_of_job(failed)
        except (SignalException, UnkillableWorkerError):
            self._leaves = not agent.has_ended_job
            raise

    def _create_agent(self, handler: RendezvousHandler) -> LocalElasticAgent:
        components, config = self._components, self._request.config
        return (self._request.agent_class or LocalElasticAgent)(
            spec=self._request.worker_spec(handler, components.worker_store),
            logs_specs=self._logs_specs,
            start_method=config.start_method,
            exit_barrier_timeout=config.exit_barrier_timeout,
            log_line_prefix_template=config.log_line_prefix_template,
            shutdown_timeout=self._grace,
            health_check_server=self._request.health_check_server,
            services=AgentServices(
                signal_policy=components.signal_policy,
                restart_policy=components.restart_policy,
                health_checks=components.health_checks,
                notify=self._notify,
                wait_reporter=self._wait_reporter,
                watchdog=self._watchdog,
                worker_env=self._worker_env,
                binder=components.binder,
                open_store=components.open_store,
                starter=components.starter,
                output_stats=self._output_stats,
                keep_daemons=config.keep_daemons,
                stdin=config.stdin,
                status=self._guard.status,
                exit_rules=components.exit_rules,
            ),
        )

    def _start_extensions(self, agent: LocalElasticAgent, handler: RendezvousHandler) -> None:
        snapshot = functools.partial(
            snapshot_of_launch,
            agent,
            handler,
            self._wait_reporter,
            self._watchdog,
            self._output_stats,
            self._events,
        )
        for item in self._components.extensions:
            item.start(AgentControl(agent, item.who, snapshot, handler, self._log))
            if self._events is not None and item.takes_events:
                self._events.start(item)

    # --- the end ----------------------------------------------------------------------------------

    def _finish(self, _: object, error: BaseException | None, __: object) -> None:
        """End the log, and stop the extensions; those that take events stop with their queue."""
        try:
            self._log.finish(error)  # a signal may end the wait for the readers
        finally:
            for item in self._components.extensions:
                item.end()

    def _failure_of_job(self, result: RunResult) -> ChildFailedError:
        """Return the error of a launch whose workers have failed.

        It does not name error files that are gone when the report is read; their content is in it.
        """
        folder = self._components.logs_specs.temporary_dir
        failures = dict(result.failures)
        for rank, failure in failures.items():
            if folder and failure.error_file.startswith(os.path.join(folder, "")):
                failures[rank] = replace(failure, error_file=NOT_AVAILABLE)
        return replace(result, failures=failures).error(self._request.name)

    def _run_after_failure(self, agent: LocalElasticAgent) -> None:
        from plaunch.launch.occasions import run_after_failure  # failures only

        run_after_failure(self._manager, self._components, agent, self._result, self._log)

    def _close_logs(self) -> None:
        """Let the logs spec delete what it does not keep; its errors do not change the outcome."""
        logs_specs = self._components.logs_specs
        is_asked = self._guard.status.is_asked_to_end()
        try:
            self._guard.call(
                self._manager.who_made(logs_specs),
                "close",
                functools.partial(logs_specs.close, self._has_succeeded),
                CLOSE_TIMEOUT_AFTER_STOP if is_asked else CLOSE_TIMEOUT,
                advice="; plaunch does not wait for it any longer",
            )
        except (PlaunchError, RuntimeError) as error:  # the latter if there are no more threads
            logger.warning("the logs spec could not clean up: %s", error)

    def _release(self, handler: RendezvousHandler) -> None:
        """Leave the rendezvous, if the job may continue without this node; else shut it down."""
        policy, agent = self._components.signal_policy, self._agent
        asked_at = -math.inf if agent is None else agent.asked_at
        release_rendezvous(
            handler.leave if self._leaves else lambda: shut_down(handler, policy, asked_at)
        )

    # --- called by the agent ----------------------------------------------------------------------

    def _last_progress(self) -> float:
        # A slow console may take long to show the last of the output. Only then does it count:
        # while workers run, other threads look after their output.
        agent = self._agent
        is_showing = agent is not None and not agent.snapshot().pids
        shown = self._output_stats.last_shown() if is_showing else -math.inf
        return max(shown, self._guard.last_wait)

    def _notify(self, notification: Notification) -> None:
        """Add to the log what the agent does."""
        self._watchdog.touch()
        self._log.add(notification)

    def _create_listeners(self) -> list[Notify]:
        from plaunch.launch.occasions import create_listeners  # most stops are not slow

        return create_listeners(self._manager, self._components.context)

    def _release_threads(self, notification: Notification) -> None:
        """Let plugins use the processors, which they leave to the start of workers."""
        if not isinstance(notification, WorkersStarted):
            return
        for item in self._components.extensions:
            item.release()
        if self._request.started is not None:
            self._request.started()

    def _rest_threads(self, notification: Notification) -> None:
        """End the threads of plugins, which may hold locks at a fork; log which ones remain.

        A launcher without other threads also forks its guard, which is faster than a program.
        """
        if not isinstance(notification, BeforeWorkers):
            return
        self._guard.rest()
        if not self._request.forks_workers:
            return
        for item in self._components.extensions:
            item.rest()
        for call in self._guard.left_behind():
            logger.warning(
                "%s; workers are forked meanwhile, and a lock that this call holds stays locked "
                "in them (use --start-method=spawn to avoid this)",
                call,
            )

    def _worker_env(self, worker: WorkerInfo, env: Mapping[str, str]) -> Mapping[str, str]:
        self._watchdog.touch()
        added = find_worker_env(self._manager, worker, env)
        if self._request.forks_workers:
            self._guard.rest()  # the workers are forked next
        return {**self._request.config.worker_variables(), **added}


class _SlowStops:
    """Passes notifications to the listeners of plugins, from the first slow stop on."""

    def __init__(self, create: Callable[[], list[Notify]]) -> None:
        self._create = create
        self._listeners: list[Notify] | None = None

    def handle(self, notification: Notification) -> None:
        if self._listeners is None:
            if not (isinstance(notification, Stopping) and notification.step.step == "waiting"):
                return
            self._listeners = self._create()
        for listen in self._listeners:
            listen(notification)
