"""The names of `torch.distributed.launcher` and `torch.distributed.launcher.api`.

Objects of torch's classes are accepted (a `LaunchConfig`, a `LogsSpecs`), and the exceptions are
also torch's, if torch is imported: see `plaunch_torchrun.exceptions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import plaunch
from plaunch import LaunchConfig
from plaunch.agent import LocalElasticAgent as LocalElasticAgent  # noqa: PLC0414 - replaceable

from plaunch_torchrun.agents import is_own_agent, launch_with_torch
from plaunch_torchrun.elastic.metrics import configure_metrics
from plaunch_torchrun.exceptions import torch_typed
from plaunch_torchrun.nodes import refuse_engine
from plaunch_torchrun.registry import create_manager
from plaunch_torchrun.starter import find_replacements
from plaunch_torchrun.translate import own_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch_torchrun.health import HealthCheckServer

__all__ = ["LaunchConfig", "elastic_launch", "launch_agent"]


class TorchTypedLaunch:
    """`plaunch.elastic_launch` for torch's configurations and with torch's exceptions.

    It also knows the backends in `plaunch_torchrun.elastic.rendezvous.rendezvous_handler_registry`.
    It calls the function that this module has under the name `launch_agent` then, as torchrun does.
    """

    def __init__(
        self,
        config: Any,
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
        more = {"plugins": self._plugins} if self._plugins else {}
        return launch_agent(
            self._config,
            self._entrypoint,
            list(args),
            health_check_server=self._health_check_server,
            **more,
        )


elastic_launch = TorchTypedLaunch  # torchrun's name


def launch_agent(
    config: Any,
    entrypoint: Callable[..., Any] | str | None,
    args: list[Any],
    health_check_server: HealthCheckServer | None = None,
    *,
    plugins: Sequence[object] = (),
) -> dict[int, Any]:
    """`plaunch.launch_agent` for torch's configurations and with torch's exceptions.

    The agent is of the class that this module has under the name `LocalElasticAgent` then. If a
    program has assigned a class of torch's agents there, torch's launcher runs it.
    """
    with torch_typed():
        refuse_engine("elastic_launch and launch_agent start workers")
        if not is_own_agent(LocalElasticAgent):
            return launch_with_torch(
                LocalElasticAgent, config, entrypoint, args, health_check_server
            )
        own = own_config(config)
        configure_metrics(own.metrics_cfg)
        return plaunch.launch_agent(
            own,
            entrypoint,
            args,
            health_check_server,
            manager=create_manager(own.rdzv_backend, [*plugins, *find_replacements(entrypoint)]),
            agent_class=LocalElasticAgent,
        )


_OWN_LAUNCH_AGENT = launch_agent


def is_replaced() -> bool:
    """Whether a program has replaced `launch_agent`, or the agent with a class of torch's."""
    return launch_agent is not _OWN_LAUNCH_AGENT or not is_own_agent(LocalElasticAgent)
