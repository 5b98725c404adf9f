"""Fills in options that the user has not given, from a scheduler's allocation."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from plaunch.cli import parse_min_max_nnodes
from plaunch.errors import UsageError
from plaunch.plugin import RENDEZVOUS, SCHEDULERS
from plaunch.rendezvous import traits_of
from plaunch.scheduling import Allocation
from plaunch_network import parse_rendezvous_endpoint

from plaunch_schedulers.starters import offer_scheduler, warn_of_hasty_stop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.cli import Arguments
    from plaunch.plugin import PluginManager

logger = logging.getLogger("plaunch")


_ELASTIC = "c10d"  # the default backend of several nodes


def fill_in(
    args: Arguments, manager: PluginManager, environ: Mapping[str, str] | None = None
) -> str:
    """Fill in the options that the user has not given from the scheduler.

    Args:
        args: the options, which are changed in place.
        manager: finds the selected scheduler.
        environ: the environment variables; by default this process's.

    Returns:
        One line for the user: the values and their sources; or how to use a scheduler, if none is
        selected and one seems to be present.

    Raises:
        UsageError: the scheduler is unknown, rejects the environment, or lacks a necessary value.
        PluginError: the scheduler failed.
    """
    environ = os.environ if environ is None else environ
    if warning := warn_of_hasty_stop(args.shutdown_timeout, environ):
        logger.warning("%s", warning)
    name: str | None = args.scheduler
    if name is None:
        return offer_scheduler(args, environ)
    find = manager.get(SCHEDULERS, name)
    if args.standalone:
        logger.warning("--standalone overrides --scheduler=%s", name)
        return ""
    allocation = manager.call(SCHEDULERS, name, lambda: _checked(find(environ)))
    return apply_allocation(args, allocation, name, manager)


def _checked(allocation: object) -> Allocation:
    if not isinstance(allocation, Allocation):
        raise TypeError(f"it returned {allocation!r}, which is not a plaunch.scheduling.Allocation")
    return allocation


def apply_allocation(
    args: Arguments, allocation: Allocation, scheduler: str, manager: PluginManager
) -> str:
    """Fill in `args` and its `sources` from `allocation`; returns the line of `fill_in`.

    Options that the user has given are kept. With one node, nothing about a rendezvous is filled
    in. With several, the backend becomes `c10d`, unless the user has selected one or given an
    address for `static`. The endpoint is only filled in for `c10d` and `static`, which are hosted
    by a node.

    Raises:
        UsageError: a value that several nodes need is unknown.
    """
    filling = _Filling(args, allocation, scheduler)
    if allocation.nproc_per_node is not None and not args.is_given("devices"):
        filling.fill("nproc_per_node", str(allocation.nproc_per_node), "nproc_per_node")
    if allocation.nnodes is not None:
        filling.fill("nnodes", str(allocation.nnodes), "nnodes")
    elif not args.is_given("nnodes"):
        filling.refuse_missing("nnodes")
    _, max_nodes = parse_min_max_nnodes(args.nnodes)
    if allocation.run_id and not args.is_given("rdzv_id"):
        filling.fill("rdzv_id", allocation.run_id, "run_id")
        if allocation.job_id:
            # With a given run id, one job of the scheduler may have several launches.
            filling.fill("job_id", allocation.job_id, "job_id")
    if max_nodes == 1:
        return filling.describe()
    _fill_rendezvous(filling, max_nodes, manager)
    if not args.is_given("rdzv_id"):
        filling.refuse_missing("run_id")
    return filling.describe()


def _fill_rendezvous(filling: _Filling, max_nodes: int, manager: PluginManager) -> None:
    """Fill in the rendezvous of several nodes."""
    args, allocation = filling.args, filling.allocation
    is_addressed = args.is_given("master_addr") or args.is_given("master_port")
    if not is_addressed and (allocation.endpoint or args.is_given("rdzv_endpoint")):
        filling.fill("rdzv_backend", _ELASTIC, "", "several nodes")
    traits = traits_of(manager.get(RENDEZVOUS, args.rdzv_backend))
    is_static = traits.has_given_ranks
    rank = allocation.node_rank
    if rank is None:
        if is_static and not args.is_given("node_rank"):
            filling.refuse_missing("node_rank")
    elif is_static or rank < max_nodes:
        # If fewer nodes are given, the others are spares and have no index.
        filling.fill("node_rank", rank, "node_rank")
    if args.is_given("rdzv_endpoint") or not traits.is_hosted_by_node:
        return
    if not allocation.endpoint:
        if not args.is_given("master_addr"):
            filling.refuse_missing("endpoint")
        return
    if not is_static:
        filling.fill("rdzv_endpoint", allocation.endpoint, "endpoint")
        return
    host, port = parse_rendezvous_endpoint(allocation.endpoint, -1)
    filling.fill("master_addr", host, "endpoint")
    if port >= 0:
        filling.fill("master_port", port, "endpoint")


class _Filling:
    """Fills in options, and describes that."""

    def __init__(self, args: Arguments, allocation: Allocation, scheduler: str) -> None:
        self.args = args
        self.allocation = allocation
        self._scheduler = scheduler
        self._filled: list[str] = []

    def fill(self, dest: str, value: object, field: str, source: str = "") -> None:
        """Set an option, unless the user has given it."""
        if self.args.is_given(dest):
            return
        source = self.allocation.sources.get(field, source)
        self.args.give(dest, value, f"{source} ({self._scheduler})" if source else self._scheduler)
        self._filled.append(f"{dest}={value}" + (f" ({source})" if source else ""))

    def refuse_missing(self, field: str) -> None:
        """Raise if the scheduler lists a necessary value as missing."""
        if field in self.allocation.missing:
            raise UsageError(f"--scheduler={self._scheduler}: {self.allocation.missing[field]}")

    def describe(self) -> str:
        """Describe the values and their sources."""
        return f"from {self._scheduler}: {', '.join(self._filled)}" if self._filled else ""
