"""What a launch creates after its settings are checked: the rendezvous handler, and the workers."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from plaunch import parts
from plaunch.agent.closing import release_rendezvous
from plaunch.agent.worker import WorkerSpec
from plaunch.errors import UsageError
from plaunch.plugin.kinds import RENDEZVOUS
from plaunch.rendezvous.parameters import JobSettings, RendezvousParameters
from plaunch.rendezvous.token import check_token_is_used

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent.notifications import Notify
    from plaunch.config import LaunchConfig
    from plaunch.events import Event
    from plaunch.launch.prepare import LaunchRequest
    from plaunch.plugin.extensions import EventLog
    from plaunch.plugin.manager import PluginManager
    from plaunch.plugin.policies import LaunchRestartPolicy
    from plaunch.rendezvous.api import RendezvousHandler

STACKS = "stacks"  # the plugin with options that takes stacks before SIGKILL
# Seconds that a backend may take to create its handler. Those written for torchrun may connect
# then, to a store that another node has yet to open; their timeouts are within torchrun's default
# of `join_timeout`.
CONNECT_BOUND = 600.0


def create_rendezvous(
    config: LaunchConfig,
    manager: PluginManager,
    restart_policy: LaunchRestartPolicy | None,
) -> RendezvousHandler:
    """Create the rendezvous handler of the selected backend.

    Args:
        config: the settings.
        manager: finds the backend.
        restart_policy: decides about restarts on the leading node.

    Raises:
        UsageError: the backend refuses its settings, or does not use the job's token.
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
            node_rank=config.node_rank,
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
    except UsageError:  # a third party's backend may write it in another way
        join_timeout = None
    return max(CONNECT_BOUND, join_timeout or 0.0)


def watch_slow_stops(config: LaunchConfig, manager: PluginManager) -> Notify:
    """Create the listener that shows where workers are that take long to stop, if there is one."""
    if all(one.name != STACKS for one in manager.plugin_options()):
        return lambda notification: None
    create = parts.find_part(parts.SLOW_STOPS)
    if create is None:
        return lambda notification: None
    watch: Notify = create(config)
    return watch


def worker_command(request: LaunchRequest) -> list[str]:
    """The command of a worker, for a starter; see `Starter.begin`."""
    if not callable(request.entrypoint):
        return [request.entrypoint, *map(str, request.args)]
    if request.config.start_method == "fork":
        return []
    command: list[str] = parts.load_part(parts.FUNCTION_COMMAND)()
    return command


def late_events(
    config: LaunchConfig, entry_point: str, log: EventLog
) -> Callable[[], Callable[[], list[Event]]]:
    """Return a factory for `Control.take_events`, called when an extension first needs it.

    Args:
        config: the launch.
        entry_point: what is run, as users call it.
        log: the notifications of the agent so far.
    """

    def create() -> Callable[[], list[Event]]:
        create_late_events = parts.load_part(parts.LATE_EVENTS)
        take: Callable[[], list[Event]] = create_late_events(config, entry_point, log.all).take
        return take

    return create


def worker_spec(
    request: LaunchRequest, handler: RendezvousHandler, *, worker_store: str
) -> WorkerSpec:
    """Create the spec of this node's workers, from the settings of the same names.

    Args:
        request: what to run.
        handler: the rendezvous.
        worker_store: replaces the setting of that name.
    """
    config = request.config
    names = [item.name for item in fields(WorkerSpec) if hasattr(config, item.name)]
    settings: dict[str, Any] = {name: getattr(config, name) for name in names}
    settings["worker_store"] = worker_store
    return WorkerSpec(
        local_world_size=config.nproc_per_node,
        entrypoint=request.entrypoint,
        args=tuple(request.args),
        rdzv_handler=handler,
        **settings,
    )
