"""The variables of MPI's launchers, in recorded environments (see their README)."""

from __future__ import annotations

import pytest
from plaunch.errors import UsageError
from plaunch_schedulers.mpi import find_mpi_allocation

from helpers.environments import recorded


@pytest.mark.parametrize(
    ("name", "nnodes", "rank", "run_id"),
    [
        ("openmpi-1x1-rank0", 1, 0, "527106049"),
        ("openmpi-in-slurm-3x1-rank1", 3, 1, "1092485121"),
        ("mpich-2x1-rank1", 2, 1, ""),
        ("slurm-step-pmi2-task1", 2, 1, ""),
    ],
)
def test_a_rank_is_a_node(name, nnodes, rank, run_id):
    environ = recorded(name)
    allocation = find_mpi_allocation(environ)
    assert (allocation.nnodes, allocation.node_rank) == (nnodes, rank)
    assert allocation.run_id == environ.get("PMIX_NAMESPACE", "") == run_id
    assert allocation.endpoint == ""
    assert "MASTER_ADDR" in allocation.missing["endpoint"]
    assert set(allocation.sources.values()) <= set(environ)


@pytest.mark.parametrize(
    ("address", "port", "endpoint"),
    [
        ("node1", None, "node1"),
        ("node1", "29501", "node1:29501"),
        ("fd00::1", None, "fd00::1"),
        ("fd00::1", "29501", "[fd00::1]:29501"),
    ],
)
def test_the_endpoint_is_master_addr(address, port, endpoint):
    environ = recorded("mpich-2x1-rank1", MASTER_ADDR=address, MASTER_PORT=port)
    allocation = find_mpi_allocation(environ)
    assert allocation.endpoint == endpoint
    assert allocation.missing == {}
    assert allocation.sources["endpoint"].startswith("MASTER_ADDR")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("openmpi-1x2-rank1", r"2 launchers .*_LOCAL_SIZE\) .* mpirun --map-by ppr:1:node"),
        ("mpich-1x2-rank1", r"2 launchers .*MPI_LOCALNRANKS\) .* mpiexec -ppn 1"),
    ],
)
def test_several_launchers_on_one_node_are_rejected(name, message):
    with pytest.raises(UsageError, match=message):
        find_mpi_allocation(recorded(name))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"PMI_SIZE": None}, "none of OMPI_COMM_WORLD_SIZE, PMI_SIZE is set"),
        ({"PMI_RANK": None}, "PMI_RANK is not set"),
        ({"PMI_RANK": "2"}, r"PMI_RANK is 2 among 2 \(PMI_SIZE\)"),
        ({"PMI_SIZE": "0"}, "PMI_SIZE is '0'"),
        ({"MPI_LOCALNRANKS": "x"}, "MPI_LOCALNRANKS is 'x'"),
        ({"MPI_LOCALNRANKS": None, "MPI_LOCALRANKID": "1"}, r"2 launchers .*MPI_LOCALRANKID"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "none"}, "MASTER_PORT is 'none'"),
    ],
)
def test_invalid_environments(changes, message):
    with pytest.raises(UsageError, match=message) as caught:
        find_mpi_allocation(recorded("mpich-2x1-rank1", **changes))
    assert "\n" not in str(caught.value)
