"""Launching from code: a configuration and an entrypoint in, results or a typed exception out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plaunch.config import default_run_id
from plaunch.errors import UsageError
from plaunch.launch.prepare import LaunchRequest, prepare
from plaunch.launch.session import LaunchSession
from plaunch.plugin.manager import PluginManager

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch.agent.local import HealthServer, LocalElasticAgent
    from plaunch.config import LaunchConfig


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
        health_check_server: HealthServer | None = None,
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
    health_check_server: HealthServer | None = None,
    *,
    plugins: Sequence[object] = (),
    manager: PluginManager | None = None,
    show: Callable[[str, str], None] | None = None,
    started: Callable[[], None] | None = None,
    agent_class: type[LocalElasticAgent] | None = None,
) -> dict[int, Any]:
    """Run `entrypoint` with `args` in the workers of this node and wait for the end.

    Args:
        config: the settings; a missing `run_id` is written into it: one that is made up, or on
            several nodes, which must agree, the default of the command line.
        entrypoint: a function, or the path of a program.
        args: arguments of every worker; `${local_rank}` in a string is replaced.
        health_check_server: is started before the first round and stopped at the end; by default
            the one that `TORCHELASTIC_HEALTH_CHECK_PORT` asks for.
        plugins: plugins for this launch alone, beside the installed ones.
        manager: a plugin manager to use instead of a fresh one; `plugins` is then not allowed.
        show: shows what the launch waits for and, its second argument, for how long, and replaces
            what it showed before; empty texts clear it. By default it is logged from time to time.
        started: is called whenever workers have been started.
        agent_class: the class of the agent, if it is not `LocalElasticAgent` itself.

    Returns:
        The return value of each worker of this node by global rank; None for programs.

    Raises:
        ChildFailedError: workers failed and no restart was left.
        SignalException: a stop signal ended the job.
        UsageError: a setting cannot be used; nothing was started.
        PluginError: a plugin cannot be loaded, breaks the rules, or raises another exception.
        RendezvousError: the nodes could not meet.
    """
    if manager is not None and plugins:
        raise UsageError("give plugins to launch_agent or to its manager, not to both")
    if entrypoint is None:
        raise UsageError("nothing to launch: the entrypoint is None")
    if manager is None:
        manager = PluginManager.create(plugins)
    if not config.run_id:
        config.run_id = default_run_id(config.max_nodes)
    request = LaunchRequest(
        config, entrypoint, args, health_check_server, show, started, agent_class
    )
    with manager.naming_plugins():
        components = prepare(config, manager, has_health_server=health_check_server is not None)
    return LaunchSession(request, manager, components).run()
