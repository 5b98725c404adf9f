"""`--check-plugin`: hands what the options say to `plaunch_testing`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from plaunch.cli.settings import parse_min_max_nnodes, parse_rdzv_conf
from plaunch.cli.stdout import STDOUT
from plaunch.errors import PluginLoadError
from plaunch.plugin.event_handlers import parse_event_conf
from plaunch.plugin.manager import PluginManager

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from plaunch.cli.invocation import Invocation


def check_command(invocation: Invocation) -> int:
    """`--check-plugin`."""
    return run_check(invocation.parsed(), invocation.plugins)


def run_check(args: argparse.Namespace, plugins: Sequence[object] = ()) -> int:
    """Check the plugin that `--check-plugin` names; the exit code is 0 if all is well, else 1.

    Raises:
        UsageError: an option is wrong, or the plugin lacks something.
        PluginError: the plugin, or what checks it, cannot be loaded.
    """
    try:
        check = importlib.import_module("plaunch_testing.check")
    except ModuleNotFoundError as error:
        raise PluginLoadError(
            "--check-plugin needs plaunch_testing, which is not installed; "
            "python -m pip install 'plaunch[testing]'"
        ) from error
    event_conf: dict[str, str] = {}
    for text in args.event_conf:
        event_conf.update(parse_event_conf(text))
    code: int = check.run_check(
        args.check_plugin,
        PluginManager.create(plugins, words=args.plugins),
        STDOUT.stream,
        rdzv_endpoint=args.rdzv_endpoint,
        rdzv_conf=parse_rdzv_conf(args.rdzv_conf),
        nodes=parse_min_max_nnodes(args.nnodes)[1],
        event_conf=event_conf,
    )
    return code
