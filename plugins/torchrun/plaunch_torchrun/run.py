"""What `torch.distributed.run` and `torch.distributed.launcher` offer to programs.

A program that imports from those can import from here instead. Objects of torch's classes are
understood (a `LaunchConfig`, a `LogsSpecs`), and the exceptions are also torch's, if torch is
imported: see `plaunch_torchrun.exceptions`.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from plaunch.cli import settings
from plaunch.cli.allocation import allocate
from plaunch.cli.command import run_script_path, worker_command
from plaunch.cli.settings import parse_min_max_nnodes
from plaunch.config import LaunchConfig
from plaunch.errors import UsageError
from plaunch.launch import elastic_launch as _elastic_launch
from plaunch.launch import launch_agent as _launch_agent
from plaunch.plugin.manager import PluginManager
from plaunch.process.failures.error_handler import record
from plaunch.process.streams.std import Std

from plaunch_torchrun.exceptions import torch_typed
from plaunch_torchrun.launch import LOCAL_RANK_ARGUMENT
from plaunch_torchrun.parser import check_env, env, get_args_parser, own_arguments, parse_args
from plaunch_torchrun.registry import create_manager
from plaunch_torchrun.translate import own_config

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from plaunch.agent.health import HealthCheckServer

__all__ = [
    "LaunchConfig",
    "Std",
    "check_env",
    "config_from_args",
    "determine_local_world_size",
    "elastic_launch",
    "env",
    "get_args_parser",
    "get_rdzv_endpoint",
    "get_use_env",
    "launch_agent",
    "main",
    "parse_args",
    "parse_min_max_nnodes",
    "record",
    "run",
    "run_script_path",
]

logger = logging.getLogger("plaunch")


class elastic_launch(_elastic_launch):  # noqa: N801 - the name is torchrun's
    """`plaunch.elastic_launch` for torch's configurations and with torch's exceptions.

    It also knows the backends in `plaunch_torchrun.rendezvous_handler_registry`.
    """

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
    config: Any,
    entrypoint: Callable[..., Any] | str | None,
    args: list[Any],
    health_check_server: HealthCheckServer | None = None,
    *,
    plugins: Sequence[object] = (),
) -> dict[int, Any]:
    """`plaunch.launch_agent` for torch's configurations and with torch's exceptions."""
    with torch_typed():
        own = own_config(config)
        return _launch_agent(
            own,
            entrypoint,
            args,
            health_check_server,
            manager=create_manager(own.rdzv_backend, plugins),
        )


def determine_local_world_size(nproc_per_node: str) -> int:
    """The number of workers that `--nproc-per-node` asks for; counts devices for a word.

    Raises:
        UsageError: it is neither a number above 0 nor the name of a device counter.
    """
    return settings.determine_local_world_size(str(nproc_per_node), PluginManager.create())


def get_rdzv_endpoint(args: argparse.Namespace) -> str:
    """The endpoint in `args`; for the backend `static`, the master's address if there is none."""
    if args.rdzv_backend == "static" and not args.rdzv_endpoint:
        port = settings.DEFAULT_MASTER_PORT if args.master_port is None else args.master_port
        return f"{args.master_addr}:{port}"
    endpoint: str = args.rdzv_endpoint
    return endpoint


def get_use_env(args: argparse.Namespace) -> bool:
    """Whether workers get their local rank by variable only, and no `--local-rank` argument."""
    return bool(getattr(args, "use_env", True))


def config_from_args(
    args: argparse.Namespace,
) -> tuple[LaunchConfig, Callable[..., Any] | str, list[str]]:
    """The configuration, the program and its arguments that `args` describe.

    `args` is what `get_args_parser` makes, or any object with some of its attributes; what is
    missing has its default, or what a scheduler says, if one is to be asked (`--scheduler`). A
    caller may launch them with `elastic_launch`.

    Raises:
        UsageError: a value is malformed or out of range; the message names the option. Or plugins
            are named with `-p`, which a configuration does not carry.
    """
    words = list(getattr(args, "plugins", None) or [])
    if words:
        raise UsageError(
            f"-p {words[0]} would have no effect: a configuration does not carry plugins; call "
            "run with these arguments, or leave -p out and give elastic_launch the objects "
            "themselves (plugins=[...])"
        )
    config, entrypoint, arguments, _ = _read(args)
    return config, entrypoint, arguments


def _read(
    args: argparse.Namespace,
) -> tuple[LaunchConfig, Callable[..., Any] | str, list[str], PluginManager]:
    """What `config_from_args` returns, and the plugins that have made it, which are to run it."""
    backend = getattr(args, "rdzv_backend", None) or "static"
    manager = create_manager(backend, words=getattr(args, "plugins", None) or ())

    def ask_scheduler(own: argparse.Namespace) -> None:
        taken = allocate(own, manager)
        if taken:
            logger.info("%s", taken)

    own = own_arguments(args, ask_scheduler)
    entrypoint, arguments = worker_command(own)
    if not get_use_env(args):
        # After the script; a program without python has its arguments only.
        end = len(arguments) - len(own.training_script_args)
        arguments = [*arguments[:end], LOCAL_RANK_ARGUMENT, *arguments[end:]]
    return settings.config_from_args(own, manager), entrypoint, arguments, manager


def run(args: argparse.Namespace) -> None:
    """Launch what `args` describe, and wait for the end; see `config_from_args`.

    Plugins that are named with `-p` take part.

    Raises:
        ChildFailedError: workers failed and no restart was left.
        SignalException: a stop signal ended the job.
        PlaunchError: the launch failed for another reason.
    """
    with torch_typed():
        config, entrypoint, arguments, manager = _read(args)
        _launch_agent(config, entrypoint, arguments, manager=manager)


@record
def main(args: Sequence[str] | None = None) -> None:
    """Launch what a command line describes, by default this process's; the name is torchrun's.

    Raises what `run` does; `plaunch.cli.main` returns an exit code instead.
    """
    run(parse_args(sys.argv[1:] if args is None else args))
