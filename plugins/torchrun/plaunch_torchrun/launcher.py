"""The names of `torch.distributed.launcher` and `torch.distributed.launcher.api`.

Objects of torch's classes are accepted (a `LaunchConfig`, a `LogsSpecs`), and the exceptions are
also torch's, if torch is imported: see `plaunch_torchrun.exceptions`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import plaunch
from plaunch import LaunchConfig

from plaunch_torchrun.exceptions import torch_typed
from plaunch_torchrun.nodes import refuse_engine
from plaunch_torchrun.registry import create_manager
from plaunch_torchrun.translate import own_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch_torchrun.health import HealthCheckServer

__all__ = ["LaunchConfig", "elastic_launch", "launch_agent"]


class TorchTypedLaunch:
    """`plaunch.elastic_launch` for torch's configurations and with torch's exceptions.

    It also knows the backends in `plaunch_torchrun.elastic.rendezvous.rendezvous_handler_registry`.
    """

    def __init__(
        self,
        config: Any,
        entrypoint: Callable[..., Any] | str | None,
        health_check_server: HealthCheckServer | None = None,
        *,
        plugins: Sequence[object] = (),
    ) -> None:
        self._launch = functools.partial(
            launch_agent,
            config,
            entrypoint,
            health_check_server=health_check_server,
            plugins=plugins,
        )

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Run the workers to the end; see `launch_agent`."""
        return self._launch(list(args))


elastic_launch = TorchTypedLaunch  # torchrun's name


def launch_agent(
    config: Any,
    entrypoint: Callable[..., Any] | str | None,
    args: list[Any],
    health_check_server: HealthCheckServer | None = None,
    *,
    plugins: Sequence[object] = (),
) -> dict[int, Any]:
    """`plaunch.launch_agent` for torch's configurations and with torch's exceptions."""
    with torch_typed():
        refuse_engine("elastic_launch and launch_agent start workers")
        own = own_config(config)
        return plaunch.launch_agent(
            own,
            entrypoint,
            args,
            health_check_server,
            manager=create_manager(own.rdzv_backend, plugins),
        )
