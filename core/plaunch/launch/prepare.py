"""Creates the components of a launch from its settings, before anything starts."""

from __future__ import annotations

import functools
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch import parts
from plaunch.agent.local import HEALTH_VARIABLE
from plaunch.agent.notifications import LaunchStarted
from plaunch.agent.rounds import release_rendezvous
from plaunch.agent.worker import GroupInfo, WorkerSpec
from plaunch.agent.worker_store import open_default_store
from plaunch.errors import PluginLoadError, UsageError
from plaunch.plugin.contributions import (
    find_binder,
    find_declaring,
    find_starter,
    find_worker_store,
)
from plaunch.plugin.extensions import create_extensions
from plaunch.plugin.kinds import EVENT_HANDLERS, LOGS_SPECS, RENDEZVOUS, SIGNAL_POLICIES
from plaunch.plugin.policies import LaunchRestartPolicy, LaunchSignalPolicy
from plaunch.process.components import ExitRules
from plaunch.process.proc import check_table
from plaunch.rendezvous.backend import JobSettings, RendezvousParameters, traits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from plaunch.agent.local import HealthServer, LocalElasticAgent
    from plaunch.agent.notifier import EventLog
    from plaunch.agent.worker_store import OpenStore
    from plaunch.config import LaunchConfig
    from plaunch.health import HealthChecks
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.extensions import ExtensionRunner, LaunchEvents
    from plaunch.plugin.manager import PluginManager
    from plaunch.plugin.options import PluginOptions
    from plaunch.process.components import Binder, Starter
    from plaunch.process.logs import LogsSpecs
    from plaunch.rendezvous.api import RendezvousHandler

    # Takes the log, the context, a function that creates the folder of the run, and the extensions.
    PublishEvents = Callable[
        [EventLog, PluginContext, Callable[[], str | None], Sequence[ExtensionRunner]],
        LaunchEvents,
    ]

logger = logging.getLogger("plaunch")

STDIN_SCRIPT = "<stdin>"  # the name of a script from stdin, as in Python's tracebacks
# Seconds that a backend may take to create its handler. Those written for torchrun may connect
# then, to a store that another node has yet to open; their timeouts are within torchrun's default
# of `join_timeout`.
CONNECT_BOUND = 600.0


class LaunchRequest(NamedTuple):
    """What the caller of a launch asks for; see `launch_agent`."""

    config: LaunchConfig
    entrypoint: Callable[..., Any] | str
    args: list[Any]
    health_check_server: HealthServer | None = None
    show: Callable[[str, str], None] | None = None
    started: Callable[[], None] | None = None
    agent_class: type[LocalElasticAgent] | None = None

    @property
    def command(self) -> list[str]:
        """The name, and the arguments behind it as texts; those of a function are not known."""
        words = [str(arg) for arg in self.args] if isinstance(self.entrypoint, str) else []
        name = "-" if self.name == STDIN_SCRIPT else self.name
        return [self.name, *words[words.index(name) + 1 if name in words else 0 :]]

    @property
    def name(self) -> str:
        """What is run, in reports and events: a function, a program, or a script."""
        entrypoint = self.entrypoint
        if not isinstance(entrypoint, str):
            name: str = getattr(entrypoint, "__qualname__", repr(entrypoint))
            return name
        if entrypoint in (sys.executable, os.environ.get("PYTHON_EXEC")):
            words = (str(arg) for arg in self.args)
            name = next((word for word in words if word == "-" or word[:1] != "-"), entrypoint)
            return STDIN_SCRIPT if name == "-" else name
        return entrypoint

    @property
    def forks_workers(self) -> bool:
        """Whether workers are forked from this process."""
        return self.config.start_method == "fork" and callable(self.entrypoint)

    def worker_command(self) -> list[str]:
        """Return the command of a worker, for a starter; see `Starter.begin`."""
        if not callable(self.entrypoint):
            return [self.entrypoint, *map(str, self.args)]
        if self.forks_workers:
            return []
        command: list[str] = parts.load_part(parts.FUNCTIONS).worker_command()
        return command

    def worker_spec(self, handler: RendezvousHandler, worker_store: str) -> WorkerSpec:
        """Create the spec of this node's workers; `worker_store` as in `LaunchComponents`."""
        config = self.config
        return WorkerSpec(
            role=config.role,
            local_world_size=config.nproc_per_node,
            rdzv_handler=handler,
            entrypoint=self.entrypoint,
            args=tuple(self.args),
            max_restarts=config.max_restarts,
            monitor_interval=config.monitor_interval,
            local_addr=config.local_addr,
            event_log_handler=config.event_log_handler,
            numa_options=config.numa_options,
            duplicate_stdout_filters=config.duplicate_stdout_filters,
            duplicate_stderr_filters=config.duplicate_stderr_filters,
            virtual_local_rank=config.virtual_local_rank,
            devices=config.devices,
            worker_store=worker_store,
            job_id=config.job_id,
        )

    def started_notification(self) -> LaunchStarted:
        """Return the first notification of the launch."""
        config = self.config
        return LaunchStarted(
            GroupInfo(config.run_id, config.role, max_restarts=config.max_restarts),
            entry_point=self.name,
            backend=config.rdzv_backend,
            endpoint=config.rdzv_endpoint,
            min_nodes=config.min_nodes,
            max_nodes=config.max_nodes,
            local_world_size=config.nproc_per_node,
            forks=self.forks_workers,
        )


class LaunchComponents(NamedTuple):
    """What the plugins of a launch have made for it.

    Args:
        context: what the plugins were created with.
        logs_specs: where the workers' output goes.
        signal_policy: what signals mean.
        restart_policy: decides what follows a failure.
        health_checks: run before the first round and after failures; None without.
        binder: gives workers devices and processors; None if they are not bound.
        worker_store: who hosts the workers' store: `agent`, if the settings say so and a plugin can
            open one, or `rank0`.
        open_store: opens that of `agent`.
        starter: starts the workers' processes; None if plaunch executes their command.
        extensions: start with the agent.
        publish_events: creates the event handlers, and returns what listens to the log for them;
            None if no event is read.
        used_plugins: the plugins that have an option set.
        exit_rules: what to do about workers that do not exit.
    """

    context: PluginContext
    logs_specs: LogsSpecs
    signal_policy: LaunchSignalPolicy
    restart_policy: LaunchRestartPolicy
    health_checks: HealthChecks | None
    binder: Binder | None
    worker_store: str
    open_store: OpenStore
    starter: Starter | None
    extensions: Sequence[ExtensionRunner]
    publish_events: PublishEvents | None
    used_plugins: Collection[str]
    exit_rules: ExitRules


def prepare(
    config: LaunchConfig, manager: PluginManager, *, has_health_server: bool = False
) -> LaunchComponents:
    """Create the components, in the order in which users expect errors. Nothing starts.

    Launches, `--dry-run` and `--doctor` call it.

    Args:
        config: the settings.
        manager: finds and calls the plugins.
        has_health_server: whether the caller has a server for torchrun's health check.

    Raises:
        UsageError: a setting cannot be used, or /proc does not show processes.
        PluginError: a plugin cannot be loaded, or has failed.
    """
    check_table()
    traits = traits_of(manager.get(RENDEZVOUS, config.rdzv_backend))
    traits.check_endpoint(config.rdzv_backend, config.rdzv_endpoint, config.max_nodes)
    logs_specs = config.logs_specs
    if logs_specs is None:
        logs_specs = manager.make(LOGS_SPECS, LOGS_SPECS.default)
    context = config.context(logs_specs)
    used = manager.use_options(config.options, _environment(has_health_server))
    made = manager.make(SIGNAL_POLICIES, config.signal_policy, context)
    signal_policy = LaunchSignalPolicy(made, manager.guard, manager.who_made(made))
    restart_policy = LaunchRestartPolicy(manager, context)
    checks = None
    if config.health_checks:
        plugin = find_declaring(manager, "LAUNCH_HEALTH_CHECKS")
        checks = _load(plugin, "LAUNCH_HEALTH_CHECKS", "run the health checks")(manager, context)
    extensions = create_extensions(manager, context)
    open_store = find_worker_store(manager, context)
    return LaunchComponents(
        context=context,
        logs_specs=logs_specs,
        signal_policy=signal_policy,
        restart_policy=restart_policy,
        health_checks=checks,
        binder=find_binder(manager, context),
        worker_store="rank0" if open_store is None else "agent",
        open_store=open_store or open_default_store,
        starter=find_starter(manager, context),
        extensions=extensions,
        publish_events=_find_events(config, manager, context, used, extensions),
        used_plugins=used,
        exit_rules=_find_exit_rules(config, manager),
    )


def _find_exit_rules(config: LaunchConfig, manager: PluginManager) -> ExitRules:
    """Return what the launch does about workers that do not exit; by default, it reports them."""
    plugin = find_declaring(manager, "EXIT_RULES")
    if plugin is None:
        return ExitRules(find_places=None)
    rules: ExitRules = parts.load_object(plugin.declared("EXIT_RULES"))(config.options)
    return rules


def _environment(has_health_server: bool) -> dict[str, str]:
    """The variables for options, without that of torchrun's health check if there is another."""
    environ = dict(os.environ)
    if HEALTH_VARIABLE in environ:
        find = parts.find_part(parts.HAS_HEALTH_CHECK)
        if has_health_server or (find is not None and find()):
            del environ[HEALTH_VARIABLE]
    return environ


def _find_events(
    config: LaunchConfig,
    manager: PluginManager,
    context: PluginContext,
    used: Collection[str],
    extensions: Iterable[ExtensionRunner],
) -> PublishEvents | None:
    """Find the event handlers of a launch; None if no event is read.

    The log is a reader, too: it reports where the time went, if that is possible.
    """
    plugin = find_declaring(manager, "EVENT_READERS")
    is_needed = (
        config.event_log_handler != EVENT_HANDLERS.default
        or (plugin is not None and plugin.name in used)
        or any(extension.takes_events for extension in extensions)
    )
    if not is_needed and (plugin is None or not logger.isEnabledFor(logging.INFO)):
        return None
    if plugin is None:  # an unknown name is the better message
        for name in config.event_log_handler.split(","):
            manager.check_name(EVENT_HANDLERS, name)
    create = _load(plugin, "EVENT_READERS", "create the events that are read")
    readers = create(config, manager, context)
    publish: PublishEvents = readers.publish
    return publish


def _load(plugin: PluginOptions | None, name: str, what: str) -> Any:
    """Import what the module of a plugin declares under `name`.

    Raises:
        PluginLoadError: there is no plugin that can do `what`.
    """
    if plugin is None:
        raise PluginLoadError(
            f"no plugin can {what} ({name}); reinstall plaunch, or remove the -p no:NAME that "
            "blocks the plugin"
        )
    return parts.load_object(plugin.declared(name))


def create_rendezvous(
    config: LaunchConfig,
    manager: PluginManager,
    restart_policy: LaunchRestartPolicy | None,
    command: Sequence[str] = (),
) -> RendezvousHandler:
    """Create the rendezvous handler of the selected backend.

    Args:
        config: the settings.
        manager: finds the backend.
        restart_policy: decides about restarts on the leading node.
        command: see `JobSettings`.

    Raises:
        UsageError: the backend refuses its settings, or does not use the job's token.
        PluginError: it breaks the rules.
    """
    params = _rendezvous_parameters(config, restart_policy, command)
    handler: RendezvousHandler = manager.make(
        RENDEZVOUS, config.rdzv_backend, params, seconds=_connect_bound(params)
    )
    if params.max_nodes > 1:
        from plaunch.rendezvous.backend import check_token_is_used  # several nodes

        try:
            check_token_is_used(params, os.environ)
        except UsageError:
            release_rendezvous(handler.leave)
            raise
    return handler


def check_rendezvous(
    config: LaunchConfig, manager: PluginManager, restart_policy: LaunchRestartPolicy | None
) -> None:
    """Check what `create_rendezvous` is given, if the backend can; contacts nothing.

    Raises:
        UsageError: the backend would refuse its settings, or does not use the job's token.
        PluginError: the backend cannot be loaded, or breaks the rules.
    """
    backend = config.rdzv_backend
    check = traits_of(manager.get(RENDEZVOUS, backend)).check
    if check is None:
        return
    params = _rendezvous_parameters(config, restart_policy)
    manager.call(RENDEZVOUS, backend, functools.partial(check, params))
    if params.max_nodes > 1:
        from plaunch.rendezvous.backend import check_token_is_used  # several nodes

        check_token_is_used(params, os.environ)


def _rendezvous_parameters(
    config: LaunchConfig,
    restart_policy: LaunchRestartPolicy | None,
    command: Sequence[str] = (),
) -> RendezvousParameters:
    return RendezvousParameters(
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
            command=command,
        ),
        **config.rdzv_configs,
    )


def _connect_bound(params: RendezvousParameters) -> float:
    """How long to wait for the factory of a backend, in seconds."""
    try:
        join_timeout = params.get_as_float("join_timeout")
    except UsageError:  # a third party's backend may write it in another way
        join_timeout = None
    return max(CONNECT_BOUND, join_timeout or 0.0)
