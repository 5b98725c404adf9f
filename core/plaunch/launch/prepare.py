"""Creates the components of a launch from its settings, before anything starts."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch import parts
from plaunch.agent.local import HEALTH_VARIABLE
from plaunch.agent.services import AgentServices
from plaunch.agent.worker import name_entrypoint
from plaunch.plugin.components import find_binder, find_starter, find_worker_store
from plaunch.plugin.extensions import create_extensions
from plaunch.plugin.metadata import EVENT_HANDLERS, LOGS_SPECS, RENDEZVOUS, SIGNAL_POLICIES
from plaunch.plugin.policies import LaunchRestartPolicy, LaunchSignalPolicy
from plaunch.rendezvous.backend import traits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from plaunch.agent.local import HealthServer
    from plaunch.config import LaunchConfig
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.extensions import ExtensionRunner, LaunchEvents
    from plaunch.plugin.manager import PluginManager
    from plaunch.process.logs import LogsSpecs

logger = logging.getLogger("plaunch")

EVENT_OPTIONS = "events"  # the plugin whose options are those of event handlers


class LaunchRequest(NamedTuple):
    """What the caller of a launch asks for; see `launch_agent`."""

    config: LaunchConfig
    entrypoint: Callable[..., Any] | str
    args: list[Any]
    health_check_server: HealthServer | None = None
    show: Callable[[str], None] | None = None
    started: Callable[[], None] | None = None

    @property
    def name(self) -> str:
        """What is run, in reports and events."""
        return name_entrypoint(self.entrypoint, self.args)


class LaunchComponents(NamedTuple):
    """What the plugins of a launch have made for it.

    Args:
        context: what the plugins were created with.
        logs_specs: where the workers' output goes.
        services: what the agent uses of them.
        restart_policy: the restart policy among them, which also knows its settings.
        extensions: start with the agent.
        create_events: creates the event handlers; None if no event is read.
        used_plugins: the plugins that have an option set.
    """

    context: PluginContext
    logs_specs: LogsSpecs
    services: AgentServices
    restart_policy: LaunchRestartPolicy
    extensions: Sequence[ExtensionRunner]
    create_events: Callable[..., LaunchEvents] | None
    used_plugins: Collection[str]


def prepare(request: LaunchRequest, manager: PluginManager) -> LaunchComponents:
    """Create the components, in the order in which users expect errors. Nothing starts.

    Raises:
        UsageError: a setting cannot be used.
        PluginError: a plugin cannot be loaded, or has failed.
    """
    config = request.config
    _check_endpoint(config, manager)
    logs_specs = config.logs_specs
    if logs_specs is None:
        logs_specs = manager.make(LOGS_SPECS, LOGS_SPECS.default)
    context = config.context(logs_specs)
    used = manager.use_options(config.options, _environment(request))
    manager.get(SIGNAL_POLICIES, config.signal_policy)  # an unknown name is the first error
    create_events = find_events(config, manager, is_wanted=EVENT_OPTIONS in used)
    made = manager.make(SIGNAL_POLICIES, config.signal_policy, context)
    signal_policy = LaunchSignalPolicy(made, manager.who_made(made))
    restart_policy = LaunchRestartPolicy(manager, context)
    checks = None
    if config.health_checks:
        checks = parts.load_part(parts.HEALTH_CHECKS)(manager, context)
    extensions = create_extensions(manager, context)
    if create_events is None and any(extension.takes_events for extension in extensions):
        create_events = find_events(config, manager, is_wanted=True)
    return LaunchComponents(
        context=context,
        logs_specs=logs_specs,
        services=AgentServices(
            signal_policy=signal_policy,
            restart_policy=restart_policy,
            health_checks=checks,
            binder=find_binder(manager, context),
            open_store=find_worker_store(manager, context),
            starter=find_starter(manager, context),
            keep_daemons=config.keep_daemons,
        ),
        restart_policy=restart_policy,
        extensions=extensions,
        create_events=create_events,
        used_plugins=used,
    )


def _check_endpoint(config: LaunchConfig, manager: PluginManager) -> None:
    """Check that several nodes have an endpoint if the backend needs one."""
    traits = traits_of(manager.get(RENDEZVOUS, config.rdzv_backend))
    traits.check_endpoint(config.rdzv_backend, config.rdzv_endpoint, config.max_nodes)


def _environment(request: LaunchRequest) -> dict[str, str]:
    """The variables for options, without that of torchrun's health check if there is another."""
    environ = dict(os.environ)
    if HEALTH_VARIABLE in environ:
        find = parts.find_part(parts.HAS_HEALTH_CHECK)
        if request.health_check_server is not None or (find is not None and find()):
            del environ[HEALTH_VARIABLE]
    return environ


def find_events(
    config: LaunchConfig, manager: PluginManager, *, is_wanted: bool
) -> Callable[..., LaunchEvents] | None:
    """What creates the event handlers and sends them events; None if no event is read.

    The log is a reader, too: it reports where the time went.

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
        return None  # the log does not report it
    found: Callable[..., LaunchEvents] = find_handlers(config, manager)
    return found
