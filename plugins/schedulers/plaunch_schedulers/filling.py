"""Fills in options that the user has not given from what a scheduler says."""

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


_ELASTIC = "c10d"  # the backend of several nodes, if nobody has chosen one


def fill_in(
    args: Arguments, manager: PluginManager, environ: Mapping[str, str] | None = None
) -> str:
    """Fill in the options that the user has not given from the scheduler.

    Args:
        args: the options, which are changed in place.
        manager: finds the scheduler that was chosen.
        environ: the environment variables; by default this process's.

    Returns:
        What was taken from where, in one line for the user; else how a scheduler would be asked, if
        there seems to be one.

    Raises:
        UsageError: the scheduler is unknown, it refuses, or it cannot say what is needed.
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
    """Fill in `args` and its `sources` from `allocation`; returns what `fill_in` returns.

    Options that the user has given stay as they are. Where there is only one node, nothing about
    meeting others is taken; where there are several, the backend becomes `c10d`, unless the user
    has chosen one or an address for `static`. The endpoint is only taken for `c10d` and `static`,
    which are hosted by a node.

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
            # Who gives a run id may have several launches in what the scheduler calls one job.
            filling.fill("job_id", allocation.job_id, "job_id")
    if max_nodes == 1:
        return filling.told()
    _fill_meeting(filling, max_nodes, manager)
    if not args.is_given("rdzv_id"):
        filling.refuse_missing("run_id")
    return filling.told()


def _fill_meeting(filling: _Filling, max_nodes: int, manager: PluginManager) -> None:
    """Fill in how this node meets others."""
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
        # Of a given, smaller number of nodes the others are spares, and have no rank of their own.
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
    """Options that are being filled in, and what to say of it."""

    def __init__(self, args: Arguments, allocation: Allocation, scheduler: str) -> None:
        self.args = args
        self.allocation = allocation
        self._scheduler = scheduler
        self._told: list[str] = []

    def fill(self, dest: str, value: object, field: str, source: str = "") -> None:
        """Give an option its value, unless the user has done so."""
        if self.args.is_given(dest):
            return
        source = self.allocation.sources.get(field, source)
        self.args.give(dest, value, f"{source} ({self._scheduler})" if source else self._scheduler)
        self._told.append(f"{dest}={value}" + (f" ({source})" if source else ""))

    def refuse_missing(self, field: str) -> None:
        """Raise if the scheduler says that something is needed which it does not know."""
        if field in self.allocation.missing:
            raise UsageError(f"--scheduler={self._scheduler}: {self.allocation.missing[field]}")

    def told(self) -> str:
        """Describe what was filled in, and from which variables."""
        return f"from {self._scheduler}: {', '.join(self._told)}" if self._told else ""
