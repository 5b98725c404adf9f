"""Agents of torch's classes, which a program has assigned to the name of torchrun's agent.

Such an agent joins rounds, and starts and watches workers itself. So torch's launcher runs it, with
the settings that torch knows.
"""

from __future__ import annotations

import importlib
import logging
import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from plaunch.agent import LocalElasticAgent
from plaunch.errors import UsageError

from plaunch_torchrun.bridges import TorchLogsSpecs

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_torchrun.health import HealthCheckServer

logger = logging.getLogger("plaunch")

_API = "torch.distributed.launcher.api"


def is_own_agent(agent: object) -> bool:
    """Whether `agent` is plaunch's class of agents, or derived from it."""
    return isinstance(agent, type) and issubclass(agent, LocalElasticAgent)


def launch_with_torch(
    agent: object,
    config: Any,
    entrypoint: Callable[..., Any] | str | None,
    args: list[Any],
    health_check_server: HealthCheckServer | None = None,
) -> dict[int, Any]:
    """Launch with an agent that is not plaunch's; torch's launcher creates and runs it.

    Raises:
        UsageError: torch is not installed, or does not have this launcher.
    """
    api = _load_launcher()
    api.LocalElasticAgent = agent
    name = getattr(agent, "__qualname__", None) or repr(agent)
    logger.warning(
        "this program has replaced torchrun's agent with %s, which is not derived from plaunch's: "
        "torch's launcher runs this launch, and settings that only plaunch has are without effect",
        name,
    )
    more = {"health_check_server": health_check_server} if health_check_server else {}
    values: dict[int, Any] = api.launch_agent(torch_config(config, api), entrypoint, args, **more)
    return values


def _load_launcher() -> Any:
    """Import torch's own module, also if plaunch has replaced it."""
    try:
        api = importlib.import_module(_API)
    except ImportError as error:
        raise UsageError(
            f"LocalElasticAgent is replaced with a class that needs torch's launcher: {error}"
        ) from error
    load = getattr(type(api), "load_torch_module", None)
    return api if load is None else load(api)


def torch_config(config: Any, api: Any) -> Any:
    """Convert a config of plaunch to torch's; one of torch's is returned as it is.

    As under torchrun, a job of one node without an endpoint meets at any port of loopback, and
    variables for all workers are set in this process.
    """
    if isinstance(config, api.LaunchConfig):
        return config
    known = {item.name for item in fields(api.LaunchConfig)}  # fewer in older versions of torch
    values = {name: getattr(config, name) for name in known if hasattr(config, name)}
    values["rdzv_timeout"] = -1  # it is in `rdzv_configs`
    values["rdzv_configs"] = dict(config.rdzv_configs)
    if config.max_nodes == 1 and not config.rdzv_endpoint:
        values["rdzv_backend"], values["rdzv_endpoint"] = ANY_PORT
        values["rdzv_configs"].pop("rank", None)
    if isinstance(config.logs_specs, TorchLogsSpecs):
        values["logs_specs"] = config.logs_specs.of_torch
    if config.shutdown_timeout is not None and "shutdown_timeout" in known:
        values["shutdown_timeout"] = int(config.shutdown_timeout)
    if config.numa_options is not None and "numa_options" in known:
        binding = importlib.import_module("torch.numa.binding")
        mode = binding.AffinityMode(config.numa_options.affinity_mode.value)
        values["numa_options"] = binding.NumaOptions(affinity_mode=mode)
    os.environ.update(config.worker_env)
    return api.LaunchConfig(**values)


# The backend and the endpoint of a job of one node, as torchrun sets them.
ANY_PORT = ("c10d", "localhost:0")
