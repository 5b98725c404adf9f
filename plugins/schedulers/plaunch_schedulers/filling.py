"""Fills in options that the user has not given, from a scheduler's allocation.

It also has the messages about the program that started this launcher, which change nothing.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from plaunch.cli import parse_min_max_nnodes
from plaunch.durations import SHUTDOWN_TIMEOUT
from plaunch.errors import UsageError
from plaunch.numbers import digits
from plaunch.plugin import RENDEZVOUS, SCHEDULERS
from plaunch.rendezvous import traits_of
from plaunch.scheduling import Allocation
from plaunch.texts import printable
from plaunch_network import parse_rendezvous_endpoint

from plaunch_schedulers.slurm import LAST_STEP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.cli import Arguments
    from plaunch.plugin import PluginManager

logger = logging.getLogger("plaunch")

_ELASTIC = "c10d"  # the default backend of several nodes

# Options that configure the rendezvous.
_RENDEZVOUS_OPTIONS = (
    "scheduler",
    "nnodes",
    "node_rank",
    "standalone",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
    "master_addr",
    "master_port",
)

_WORKER = "TORCHELASTIC_RUN_ID"  # set for workers, and so for launchers that they start

# Open MPI's setting, in the environments of Open MPI up to 4 and from 5 on, and its default.
_SIGKILL_TIMEOUT = "odls_base_sigkill_timeout"
_PREFIXES = ("OMPI_MCA_", "PRTE_MCA_")
_DEFAULT_SIGKILL_TIMEOUT = 1  # seconds


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


def find_no_allocation(environ: Mapping[str, str]) -> Allocation:
    """Return an empty allocation: the scheduler `none`, with which options have all values."""
    return Allocation()


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
        self._filled.append(printable(f"{dest}={value}" + (f" ({source})" if source else "")))

    def refuse_missing(self, field: str) -> None:
        """Raise if the scheduler lists a necessary value as missing."""
        if field in self.allocation.missing:
            raise UsageError(f"--scheduler={self._scheduler}: {self.allocation.missing[field]}")

    def describe(self) -> str:
        """Describe the values and their sources."""
        return f"from {self._scheduler}: {', '.join(self._filled)}" if self._filled else ""


# --- messages about the program that started this launcher ----------------------------------------


def offer_scheduler(args: Arguments, environ: Mapping[str, str]) -> str:
    """Describe how this launcher and others can become one job, if there are others.

    It is only advice: under torchrun each of them is a separate job, as in a sweep. Empty if the
    user has configured the rendezvous, or no other launcher was started.
    """
    if _WORKER in environ or any(map(args.is_given, _RENDEZVOUS_OPTIONS)):
        return ""
    mpi = _count(environ, "OMPI_COMM_WORLD_SIZE") or (
        _count(environ, "PMI_SIZE") if "MPI_LOCALNRANKS" in environ else 0
    )
    if mpi:
        return _offer("mpirun", mpi, "mpi") if mpi > 1 else ""
    if "SLURM_JOB_ID" not in environ or "SLURM_PTY_PORT" in environ:  # an interactive shell
        return ""
    step = digits(environ.get("SLURM_STEP_ID", ""))
    if step is not None and step <= LAST_STEP:
        nodes = _count(environ, "SLURM_STEP_NUM_NODES")
        is_one_each = (
            _count(environ, "SLURM_STEP_NUM_TASKS") == nodes
            and environ.get("SLURM_STEP_TASKS_PER_NODE") == f"1(x{nodes})"
        )
        return _offer("srun", nodes, "slurm") if nodes > 1 and is_one_each else ""
    nodes = _count(environ, "SLURM_JOB_NUM_NODES")
    if nodes < 2:
        return ""
    return (
        f"this job of Slurm's has {nodes} nodes, but this launcher uses only one, because srun "
        f"did not start it; start it with srun --nodes={nodes} --ntasks={nodes} "
        "--ntasks-per-node=1 plaunch --scheduler=slurm ... to use them all (--scheduler=none "
        "leaves this line out)"
    )


def warn_of_hasty_stop(shutdown_timeout: float | None, environ: Mapping[str, str]) -> str:
    """Return a warning if `mpirun` kills workers before their grace is over; else empty.

    Args:
        shutdown_timeout: the grace of the workers in seconds; None for the default.
        environ: the environment variables of this launcher.
    """
    if "OMPI_COMM_WORLD_SIZE" not in environ or _WORKER in environ:
        return ""
    grace = SHUTDOWN_TIMEOUT if shutdown_timeout is None else shutdown_timeout
    values = [digits(environ.get(prefix + _SIGKILL_TIMEOUT, "")) for prefix in _PREFIXES]
    timeout = next((number for number in values if number is not None), _DEFAULT_SIGKILL_TIMEOUT)
    if grace == 0 or timeout > grace:
        return ""
    return (
        f"Open MPI's mpirun kills its processes {timeout} s after SIGTERM, in spite of "
        f"--shutdown-timeout ({grace:g} s), so workers cannot save; set --mca {_SIGKILL_TIMEOUT} "
        "to more seconds than that"
    )


def _offer(program: str, count: int, scheduler: str) -> str:
    return (
        f"{program} has started {count} launchers, each running its own job; "
        f"--scheduler={scheduler} makes them one (--scheduler=none leaves this line out)"
    )


def _count(environ: Mapping[str, str], variable: str) -> int:
    """Return the number in a variable; 0 if there is none."""
    return digits(environ.get(variable, "")) or 0
