"""What a launch makes of its settings: the rendezvous handler, its events, what workers are."""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from plaunch import parts
from plaunch.agent.closing import release_rendezvous
from plaunch.agent.rounds import longest_stop
from plaunch.agent.worker import WorkerSpec
from plaunch.errors import PlaunchError, UsageError
from plaunch.plugin.guard import bounded_call
from plaunch.plugin.kinds import EVENT_HANDLERS, RENDEZVOUS
from plaunch.rendezvous.parameters import JobSettings, RendezvousParameters
from plaunch.rendezvous.token import check_token_is_used
from plaunch.rendezvous.traits import traits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch.agent.notifications import LaunchEvents, Notify
    from plaunch.config import LaunchConfig
    from plaunch.events import Event
    from plaunch.plugin.extensions import EventLog
    from plaunch.plugin.manager import PluginManager
    from plaunch.plugin.policies import LaunchRestartPolicy
    from plaunch.process.streams.logs import LogsSpecs
    from plaunch.rendezvous.api import RendezvousHandler

logger = logging.getLogger("plaunch")

STACKS = "stacks"  # the plugin with options that takes stacks before SIGKILL
# How long a backend may take to create its handler, in seconds. Those written for torchrun may
# connect then, to a store that another node has yet to open; their timeouts are within torchrun's
# default of `join_timeout`.
CONNECT_BOUND = 600.0
CLOSE_TIMEOUT = 60.0  # seconds to wait for the logs spec to clean up
HURRIED_CLOSE = 10.0  # seconds for the same when a signal has ended the job


def check_endpoint(config: LaunchConfig, manager: PluginManager) -> None:
    """Check that several nodes have an endpoint if the backend needs one.

    Raises:
        UsageError: it is missing.
        PluginError: the backend cannot be loaded.
    """
    traits = traits_of(manager.get(RENDEZVOUS, config.rdzv_backend))
    traits.check_endpoint(config.rdzv_backend, config.rdzv_endpoint, config.max_nodes)


def create_rendezvous(
    config: LaunchConfig,
    manager: PluginManager,
    restart_policy: LaunchRestartPolicy | None,
    checks_timeout: float = 0.0,
) -> RendezvousHandler:
    """The handler of the backend that was chosen.

    `checks_timeout` are the seconds that health checks may take before a round.

    Raises:
        UsageError: the backend refuses its settings, or passes the job's token over.
        PluginError: it breaks the rules.
    """
    params = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        job=JobSettings(
            role=config.role,
            local_world_size=config.nproc_per_node,
            max_restarts=config.max_restarts,
            node_rank=config.node_rank,
            stop_timeout=longest_stop(config.shutdown_timeout or 0.0, checks_timeout),
            port_range=config.port_range,
            start_timeout=config.start_timeout,
            restart_policy=restart_policy,
            shared={} if restart_policy is None else restart_policy.shared_settings(),
        ),
        **config.rdzv_configs,
    )
    handler: RendezvousHandler = manager.make(
        RENDEZVOUS, config.rdzv_backend, params, seconds=_connect_bound(params)
    )
    try:
        check_token_is_used(params, os.environ)
    except UsageError:
        release_rendezvous(handler.leave)
        raise
    return handler


def _connect_bound(params: RendezvousParameters) -> float:
    """How long to wait for the factory of a backend, in seconds."""
    try:
        join_timeout = params.get_as_float("join_timeout")
    except UsageError:  # a backend of its own may write it in another way
        join_timeout = None
    return max(CONNECT_BOUND, join_timeout or 0.0)


def close_logs(
    logs_specs: LogsSpecs,
    manager: PluginManager,
    is_unwanted: Callable[[], bool],
    *,
    succeeded: bool,
) -> None:
    """Let the logs spec drop what it does not keep; what it raises does not change the result.

    Args:
        logs_specs: the logs spec.
        manager: knows which plugin has made it.
        is_unwanted: returns whether a signal has ended the job.
        succeeded: whether the job has succeeded.
    """
    hurried = time.monotonic() + HURRIED_CLOSE
    try:
        bounded_call(
            manager.who_made(logs_specs),
            "close",
            partial(logs_specs.close, succeeded),
            CLOSE_TIMEOUT,
            lambda: time.monotonic() > hurried and is_unwanted(),
            advice="; plaunch does not wait for it any longer",
            warns=False,
        )
    except (PlaunchError, RuntimeError) as error:  # the latter if there are no more threads
        logger.warning("the logs spec could not clean up: %s", error)


def find_events(
    config: LaunchConfig, manager: PluginManager, *, is_wanted: bool
) -> Callable[..., LaunchEvents] | None:
    """What creates the event handlers, and brings events to them; None if nobody reads any.

    The log is a reader, too: it says where the time went.

    Raises:
        UsageError: a handler, or an option of one, is unknown.
        PluginError: a handler cannot be loaded.
    """
    is_named = config.event_log_handler != EVENT_HANDLERS.default
    if not (is_wanted or is_named or logger.isEnabledFor(logging.INFO)):
        return None
    find = parts.load_part if is_wanted or is_named else parts.find_part
    find_handlers = find(parts.EVENTS)
    if find_handlers is None:
        return None  # the log has less to say
    found: Callable[..., LaunchEvents] = find_handlers(config, manager)
    return found


def watch_slow_stops(config: LaunchConfig, manager: PluginManager) -> Notify:
    """What looks at workers that take long to end, from the notification on that says they do."""
    if all(one.name != STACKS for one in manager.plugin_options()):
        return lambda notification: None
    create = parts.find_part(parts.SLOW_STOPS)
    if create is None:
        return lambda notification: None
    watch: Notify = create(config)
    return watch


def worker_command(
    config: LaunchConfig, entrypoint: Callable[..., Any] | str, args: Sequence[Any]
) -> list[str]:
    """What a worker is started with, for a starter; see `Starter.begin`."""
    if not callable(entrypoint):
        return [entrypoint, *map(str, args)]
    if config.start_method == "fork":
        return []
    command: list[str] = parts.load_part(parts.FUNCTION_COMMAND)()
    return command


def late_events(
    config: LaunchConfig, entry_point: str, told: EventLog
) -> Callable[[], Callable[[], list[Event]]]:
    """What makes what gives the events since the last time, of all that an agent has told.

    Args:
        config: the launch.
        entry_point: what is run, as users call it.
        told: by the agent, up to then.
    """

    def create() -> Callable[[], list[Event]]:
        create_late_events = parts.load_part(parts.LATE_EVENTS)
        take: Callable[[], list[Event]] = create_late_events(config, entry_point, told.all).take
        return take

    return create


def worker_spec(
    config: LaunchConfig,
    handler: RendezvousHandler,
    entrypoint: Callable[..., Any] | str,
    args: Sequence[Any],
    *,
    worker_store: str,
) -> WorkerSpec:
    """The workers of this node; `worker_store` is who hosts their store."""
    return WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=entrypoint,
        args=tuple(args),
        rdzv_handler=handler,
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        local_addr=config.local_addr,
        event_log_handler=config.event_log_handler,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        numa_options=config.numa_options,
        virtual_local_rank=config.virtual_local_rank,
        devices=config.devices,
        worker_store=worker_store,
        job_id=config.job_id,
    )
