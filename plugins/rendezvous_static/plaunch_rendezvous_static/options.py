"""Fills in the endpoint of nodes with given ranks, and rejects contradictory options."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch.cli import parse_min_max_nnodes
from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.cli import Arguments

logger = logging.getLogger("plaunch")

DEFAULT_PORT = 29500  # of the master, as under torchrun
_DEFAULT_ADDRESS = "127.0.0.1"


def fill_in(args: Arguments) -> None:
    """Make the endpoint from `--master-addr` and `--master-port`, if it is not given.

    Warns about probable mistakes.

    Raises:
        UsageError: the port of several nodes is 0.
    """
    min_nodes, max_nodes = parse_min_max_nnodes(args.nnodes)
    if max_nodes > 1 and not args.rdzv_endpoint:
        if not args.master_addr:
            return  # the launcher rejects several nodes without an endpoint
        if args.master_port == 0:
            raise UsageError(
                f"--master-port=0 leaves {max_nodes} nodes without a port that all of them know; "
                "give one, the same on all nodes, or --rdzv-backend=c10d and --rdzv-endpoint with "
                "the name of one node"
            )
    for text in _warnings_about(args, max_nodes, is_range=min_nodes != max_nodes):
        logger.warning("%s", args.as_given(text))
    is_addressed = args.master_port is not None or args.master_addr is not None
    if not args.rdzv_endpoint and (max_nodes > 1 or is_addressed):
        address = _DEFAULT_ADDRESS if args.master_addr is None else args.master_addr
        port = DEFAULT_PORT if args.master_port is None else args.master_port
        if ":" in address:
            address = f"[{address}]"
        args.rdzv_endpoint = f"{address}:{port}"


def _warnings_about(args: Arguments, max_nodes: int, *, is_range: bool) -> Iterator[str]:
    """Yield warnings about combinations of options."""
    if max_nodes > 1:
        if not args.is_given("node_rank"):
            yield "this node is node 0, as --node-rank was not given; each node needs its own"
        if is_range:
            yield (
                f"rendezvous backend {args.rdzv_backend!r} does not support a range of nodes: it "
                f"waits for all {max_nodes} (--nnodes)"
            )
    if args.rdzv_endpoint and not _is_endpoint(args):
        names = ("--master-addr", "--master-port")
        ignored = [n for n in names if args.is_given(n[2:].replace("-", "_"))]
        if ignored:
            yield f"--rdzv-endpoint={args.rdzv_endpoint} is used, and {', '.join(ignored)} is not"


def _is_endpoint(args: Arguments) -> bool:
    """Whether the master's address is the endpoint; accelerate gives both."""
    host, _, port = args.rdzv_endpoint.rpartition(":")
    is_given = args.is_given("master_port")
    return bool(host == args.master_addr and (not is_given or port == str(args.master_port)))
