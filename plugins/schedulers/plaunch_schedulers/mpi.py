"""MPI: launchers that `mpirun` or `mpiexec` has started, one on each node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from plaunch.errors import UsageError
from plaunch.scheduling import Allocation
from plaunch_network import join_host_port

from plaunch_schedulers.numbers import find_number

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Variables(NamedTuple):
    """The variables of one MPI, and the option that starts one process on each node."""

    program: str
    size: str
    rank: str
    local_size: str
    local_rank: str
    fix: str


_KNOWN = (
    _Variables(
        "Open MPI",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "mpirun --map-by ppr:1:node",
    ),
    _Variables(
        "MPICH or Intel MPI",
        "PMI_SIZE",
        "PMI_RANK",
        "MPI_LOCALNRANKS",
        "MPI_LOCALRANKID",
        "mpiexec -ppn 1",
    ),
)

_ENDPOINT = (
    "MPI does not name the host of rank 0; give --rdzv-endpoint=HOST, or pass MASTER_ADDR to all "
    "ranks (mpirun -x MASTER_ADDR, or mpiexec -genv MASTER_ADDR HOST)"
)


def find_mpi_allocation(environ: Mapping[str, str]) -> Allocation:
    """Return the allocation of Open MPI, MPICH or Intel MPI, in which each rank is a node.

    MPI does not provide the host of rank 0: the endpoint is `MASTER_ADDR`, with the port
    `MASTER_PORT` if set. The run id is Open MPI's name of the job; the others have none.

    Raises:
        UsageError: this launcher was not started by MPI, or there are several on one node.
    """
    known = next((known for known in _KNOWN if environ.get(known.size)), None)
    if known is None:
        raise UsageError(
            "--scheduler=mpi, but none of "
            f"{', '.join(sorted(known.size for known in _KNOWN))} is set: mpirun or mpiexec has "
            "not started this launcher; start it with one of them, or leave the option out"
        )
    size = find_number(environ, known.size, at_least=1)
    rank = find_number(environ, known.rank)
    if size is None or rank is None:
        raise UsageError(
            f"--scheduler=mpi, but {known.rank} is not set, although {known.program} sets it; "
            "something has removed it from the environment"
        )
    if rank.value >= size.value:
        raise UsageError(
            f"variable {known.rank} is {rank.value} among {size.value} ({known.size}); something "
            f"other than {known.program} has changed one of them"
        )
    _refuse_several(environ, known)
    sources = {"nnodes": known.size, "node_rank": known.rank}
    endpoint, run_id = "", environ.get("PMIX_NAMESPACE", "")
    if run_id:
        sources["run_id"] = "PMIX_NAMESPACE"
    address = environ.get("MASTER_ADDR", "")
    if address:
        endpoint, sources["endpoint"] = address, "MASTER_ADDR"
        port = find_number(environ, "MASTER_PORT", at_least=1)
        if port is not None:
            endpoint = join_host_port(address, port.value)
            sources["endpoint"] = "MASTER_ADDR, MASTER_PORT"
    return Allocation(
        nnodes=size.value,
        node_rank=rank.value,
        endpoint=endpoint,
        run_id=run_id,
        sources=sources,
        missing={} if endpoint else {"endpoint": _ENDPOINT},
    )


def _refuse_several(environ: Mapping[str, str], known: _Variables) -> None:
    local_size = find_number(environ, known.local_size, at_least=1)
    local_rank = find_number(environ, known.local_rank)
    most, variable = 1, ""
    if local_size is not None:
        most, variable = local_size
    elif local_rank is not None:
        most, variable = local_rank.value + 1, local_rank.variable
    if most > 1:
        raise UsageError(
            f"{known.program} runs {most} launchers on this node ({variable}) with the same run "
            "id; one launcher on each node starts all its workers (--nproc-per-node): start it "
            f"with {known.fix}, or write --scheduler=none for launchers of separate jobs"
        )
