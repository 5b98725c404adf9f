"""What a launch creates after its settings are checked: the rendezvous handler, and the workers."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from plaunch import parts
from plaunch.agent.closing import release_rendezvous
from plaunch.agent.notifications import LaunchStarted, Stopping
from plaunch.agent.worker import GroupInfo, WorkerSpec
from plaunch.errors import UsageError
from plaunch.plugin.metadata import RENDEZVOUS
from plaunch.rendezvous.backend import JobSettings, RendezvousParameters, check_token_is_used

if TYPE_CHECKING:
    from plaunch.agent.notifications import Notification, Notify
    from plaunch.config import LaunchConfig
    from plaunch.launch.prepare import LaunchRequest
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
    """Create the listener that shows where workers are that take long to stop.

    It loads the part that does so with the first such stop, unless the plugin is blocked.
    """
    watch: Notify | None = None

    def listen(notification: Notification) -> None:
        nonlocal watch
        is_slow = isinstance(notification, Stopping) and notification.step.step == "waiting"
        if watch is None and is_slow:
            is_usable = any(one.name == STACKS for one in manager.plugin_options())
            create = parts.find_part(parts.SLOW_STOPS) if is_usable else None
            watch = (lambda notification: None) if create is None else create(config)
        if watch is not None:
            watch(notification)

    return listen


def launch_started(request: LaunchRequest) -> LaunchStarted:
    """The first notification of a launch."""
    config = request.config
    return LaunchStarted(
        GroupInfo(config.run_id, config.role, max_restarts=config.max_restarts),
        entry_point=request.name,
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_world_size=config.nproc_per_node,
        forks=forks_workers(request),
    )


def forks_workers(request: LaunchRequest) -> bool:
    """Whether workers are forked from this process."""
    return request.config.start_method == "fork" and callable(request.entrypoint)


def worker_command(request: LaunchRequest) -> list[str]:
    """The command of a worker, for a starter; see `Starter.begin`."""
    if not callable(request.entrypoint):
        return [request.entrypoint, *map(str, request.args)]
    if request.config.start_method == "fork":
        return []
    command: list[str] = parts.load_part(parts.FUNCTIONS).worker_command()
    return command


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
