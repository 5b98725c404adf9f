"""The names of `torch.distributed.run`.

Exceptions are also torch's, if torch is imported: see `plaunch_torchrun.exceptions`.
"""

from __future__ import annotations

import argparse
import logging
import sys
import uuid
from typing import TYPE_CHECKING, Any

import plaunch
from plaunch import LaunchConfig, cli, record
from plaunch.cli import parse_min_max_nnodes, run_script_path
from plaunch.errors import UsageError
from plaunch.plugin import PluginManager
from plaunch.process import Std

from plaunch_torchrun import launcher
from plaunch_torchrun.agents import ANY_PORT
from plaunch_torchrun.argparse_util import check_env, env
from plaunch_torchrun.elastic.metrics import configure_metrics
from plaunch_torchrun.exceptions import torch_typed
from plaunch_torchrun.launcher import elastic_launch, launch_agent
from plaunch_torchrun.nodes import launch_on_nodes
from plaunch_torchrun.parser import (
    get_args_parser,
    get_use_env,
    own_arguments,
    take_defaults,
)
from plaunch_torchrun.registry import create_manager
from plaunch_torchrun.starter import find_replacements

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

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

_MASTER_PORT = 29500


def determine_local_world_size(nproc_per_node: str) -> int:
    """Return the number of workers for `--nproc-per-node`; counts devices if it names a counter.

    Raises:
        UsageError: it is neither a number above 0 nor the name of a device counter.
    """
    return cli.determine_local_world_size(str(nproc_per_node), PluginManager.create())


def parse_args(args: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line without the program's name; the name is torchrun's.

    Raises:
        SystemExit: an option is unknown or its value is malformed (code 2), or after `--help`.
    """
    return get_args_parser().parse_args(args)


def get_rdzv_endpoint(args: argparse.Namespace) -> str:
    """Return the endpoint in `args`; by default, for the backend `static`, the master's address."""
    if args.rdzv_backend == "static" and not args.rdzv_endpoint:
        port = _MASTER_PORT if args.master_port is None else args.master_port
        return f"{args.master_addr}:{port}"
    endpoint: str = args.rdzv_endpoint
    return endpoint


def config_from_args(
    args: argparse.Namespace,
) -> tuple[LaunchConfig, Callable[..., Any] | str, list[str]]:
    """Return the configuration, the program and its arguments that `args` describe.

    `args` is the result of `get_args_parser`, or any object with some of its attributes; missing
    ones get their default, or the scheduler's value with `--scheduler`. A caller may launch them
    with `elastic_launch`.

    Raises:
        UsageError: a value is malformed or out of range; the message names the option. Or plugins
            (`-p`) or an engine (`PET_ON`) are selected, which a configuration cannot contain.
    """
    words = list(getattr(args, "plugins", None) or [])
    if words:
        raise UsageError(
            f"-p {words[0]} would have no effect: a configuration does not contain plugins; call "
            "run with these arguments, or omit -p and pass the objects to elastic_launch "
            "(plugins=[...])"
        )
    if getattr(args, "on", None):
        raise UsageError(
            f"PET_ON={args.on} would have no effect: a configuration is for this node; call run "
            "with these arguments, or unset PET_ON"
        )
    # As under torchrun, where `run` changes the arguments for a node that stands alone.
    ignored = ["standalone"]
    if getattr(args, "rdzv_backend", None) not in (None, "static"):
        ignored.append("master_port")  # which `run` sets in any case
    config, entrypoint, arguments, _ = _read(args, ignored)
    return config, entrypoint, arguments


def _read(
    args: argparse.Namespace, ignored: Collection[str] = ()
) -> tuple[LaunchConfig, Callable[..., Any] | str, list[str], PluginManager]:
    """Return the result of `config_from_args`, and the plugin manager for the launch.

    Args:
        args: what to read.
        ignored: attributes that are not read.
    """
    if ignored:
        args = argparse.Namespace(**{k: v for k, v in vars(args).items() if k not in ignored})
    own = own_arguments(args)
    entrypoint, arguments = cli.worker_command(own)
    manager = create_manager(
        own.rdzv_backend,
        find_replacements(entrypoint),
        words=own.plugins,
        entries=own.table.entries,
    )
    taken = cli.fill_in(own, manager)
    for text in filter(None, (*(f"settings from {file}" for file in own.settings_files), taken)):
        logger.info("%s", text)
    take_defaults(own)
    config = cli.config_from_args(own, manager)
    config.stdin = cli.read_script(own, logger)
    if "OMP_NUM_THREADS" in config.worker_env:
        logger.info("OMP_NUM_THREADS is 1 for each worker, because it is not set")
    return config, entrypoint, arguments, manager


def run(args: argparse.Namespace) -> None:
    """Launch what `args` describe, and wait for the end; see `config_from_args`.

    Plugins selected with `-p` are used, and so is an engine (`PET_ON`).

    Raises:
        ChildFailedError: workers failed and no restart was left.
        SignalException: a stop signal ended the job.
        PlaunchError: the launch failed for another reason.
        SystemExit: the job on the nodes of an engine failed.
    """
    with torch_typed():
        if getattr(args, "on", None):
            launch_on_nodes(args)
            return
        configure_metrics({})
        if _is_replaced() or launcher.is_replaced():
            _set_rendezvous(args)
            config, entrypoint, arguments = config_from_args(args)
            elastic_launch(config=config, entrypoint=entrypoint)(*arguments)
            return
        config, entrypoint, arguments, manager = _read(args)
        plaunch.launch_agent(
            config,
            entrypoint,
            arguments,
            manager=manager,
            agent_class=launcher.LocalElasticAgent,
        )


def _set_rendezvous(args: argparse.Namespace) -> None:
    """Set the rendezvous of a job of one node in `args`, as torchrun does before a launch.

    Functions that a program has assigned to torchrun's names expect it there.
    """
    backend = getattr(args, "rdzv_backend", None) or "static"
    is_single = (
        backend == "static"
        and not getattr(args, "rdzv_endpoint", "")
        and getattr(args, "master_port", None) is None
        and parse_min_max_nnodes(str(getattr(args, "nnodes", None) or 1))[1] == 1
    )
    if getattr(args, "standalone", False) or is_single:
        args.rdzv_backend, args.rdzv_endpoint = ANY_PORT
        args.rdzv_id = str(uuid.uuid4())
    if getattr(args, "master_port", None) is None:
        args.master_port = _MASTER_PORT


_OWN_FUNCTIONS = config_from_args, elastic_launch


def _is_replaced() -> bool:
    """Whether a program has replaced a function here that torchrun's `run` calls."""
    return (config_from_args, elastic_launch) != _OWN_FUNCTIONS


@record
def main(args: Sequence[str] | None = None) -> None:
    """Launch what a command line describes, by default this process's; the name is torchrun's.

    Raises what `run` does; `plaunch.cli.main` returns an exit code instead.
    """
    run(parse_args(sys.argv[1:] if args is None else args))
