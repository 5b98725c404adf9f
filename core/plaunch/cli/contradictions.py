"""Options that do not go together: refused with the way out, or named if they only mean nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch.cli.parser import DEFAULT
from plaunch.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

logger = logging.getLogger("plaunch")


def check_options(args: argparse.Namespace, max_nodes: int, *, is_range: bool) -> None:
    """Refuse options that contradict each other, and warn of those that torchrun also ignores.

    Args:
        args: the options, with `sources`.
        max_nodes: how many nodes there are at most.
        is_range: whether there may be fewer.

    Raises:
        UsageError: they cannot all be meant; the message says what to change.
    """
    if args.rdzv_backend == "static" and max_nodes > 1 and not args.rdzv_endpoint:
        _check_static(args, max_nodes)
    for text in _pointless(args, max_nodes, is_range):
        logger.warning("%s", text)


def _check_static(args: argparse.Namespace, max_nodes: int) -> None:
    elastic = "or --rdzv-backend=c10d and --rdzv-endpoint with the name of one node"
    if not args.master_addr:
        raise UsageError(
            f"{max_nodes} nodes (--nnodes) with the backend 'static' need an address that all of "
            "them know; give --master-addr with that of node 0, the same on all nodes (127.0.0.1 "
            f"if all are on this machine), {elastic}"
        )
    if args.master_port == 0:
        raise UsageError(
            f"--master-port=0 leaves {max_nodes} nodes without a port that all of them know; give "
            f"one, the same on all nodes, {elastic}"
        )


def _pointless(args: argparse.Namespace, max_nodes: int, is_range: bool) -> Iterator[str]:
    """What is said of options that mean nothing together."""

    def given(*options: str) -> str:
        """Those that somebody has given, as they are written."""
        return ", ".join(
            option
            for option in options
            if args.sources[option.lstrip("-").replace("-", "_")] != DEFAULT
        )

    if args.rdzv_backend != "static":
        if ignored := given("--master-addr", "--master-port"):
            yield (
                f"rendezvous backend {args.rdzv_backend!r} does not use {ignored}; only 'static' "
                "does"
            )
    elif max_nodes > 1:
        if not given("--node-rank"):
            yield "this node is node 0, as --node-rank was not given; each node needs its own"
        if is_range:
            yield (
                f"rendezvous backend 'static' knows no range of nodes: it waits for all "
                f"{max_nodes} (--nnodes)"
            )
    is_static = args.rdzv_backend == "static"
    if is_static and args.rdzv_endpoint and (ignored := given("--master-addr", "--master-port")):
        yield f"--rdzv-endpoint={args.rdzv_endpoint} is used, and {ignored} is not"
    if args.run_path and args.no_python:
        yield "--no-python means nothing with --run-path, which runs the script with python"
    if not args.run_path and (ignored := given("--start-method")):
        yield f"{ignored} means nothing without --run-path: scripts are started as programs"
    filters = given("--duplicate-stdout-filters", "--duplicate-stderr-filters")
    if filters and args.tee in ("", "0"):
        yield f"{filters} means nothing without --tee"
