"""The advice about the program that started the launcher, which changes nothing."""

from __future__ import annotations

import pytest
from plaunch.cli.parser import parse
from plaunch_schedulers.filling import offer_scheduler, warn_of_hasty_stop

from helpers.environments import recorded


def offer(environ, *argv, **variables):
    return offer_scheduler(parse([*argv, "train.py"], variables), environ)


STEP = "slurm-step-2x1-task1"
OF_SRUN = (
    "srun has started 2 launchers, each running its own job; --scheduler=slurm makes them one "
    "(--scheduler=none leaves this line out)"
)


def test_a_step_with_a_launcher_on_each_node_gets_advice():
    assert offer(recorded(STEP)) == OF_SRUN
    assert offer(recorded(STEP), "--nproc-per-node=8", "--max-restarts=3") == OF_SRUN


@pytest.mark.parametrize("name", ["slurm-batch-3-nodes", "slurm-salloc"])
def test_a_batch_script_that_uses_one_of_several_nodes_gets_advice(name):
    environ = recorded(name)
    nodes = environ["SLURM_JOB_NUM_NODES"]
    advice = offer(environ)
    assert f"has {nodes} nodes, but this launcher uses only one, because srun did not" in advice
    assert f"srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 plaunch " in advice
    # Special ids of Slurm are not steps.
    assert offer({**environ, "SLURM_STEP_ID": "4294967291"}) == advice


@pytest.mark.parametrize(
    ("ranks", "size", "scheduler"),
    [
        (["openmpi-in-batch-3x1-rank0", "openmpi-in-batch-3x1-rank1"], 3, "mpi"),
        (["openmpi-in-slurm-3x1-rank1"], 3, "mpi"),
        (["mpich-2x1-rank1"], 2, "mpi"),
    ],
)
def test_all_ranks_of_mpirun_get_the_same_advice(ranks, size, scheduler):
    (advice,) = {offer(recorded(name)) for name in ranks}
    assert advice.startswith(f"mpirun has started {size} launchers, ")
    assert f"; --scheduler={scheduler} makes them one " in advice


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("slurm-step-1x1", {}),
        ("slurm-batch-1-node", {}),
        ("slurm-step-2x8-task9", {}),
        ("slurm-step-2-nodes-3-tasks-task2", {}),
        ("slurm-pty-task1", {}),  # an interactive shell
        (STEP, {"SLURM_STEP_NUM_TASKS": None}),
        (STEP, {"SLURM_STEP_NUM_NODES": "many"}),
        (STEP, {"TORCHELASTIC_RUN_ID": "outer"}),  # a worker starts a launcher
        ("openmpi-1x1-rank0", {}),
    ],
)
def test_others_get_no_advice(name, changes):
    assert offer(recorded(name, **changes)) == ""


@pytest.mark.parametrize(
    "option",
    [
        "--scheduler=none",
        "--scheduler=slurm",
        "--nnodes=1",
        "--node-rank=0",
        "--standalone",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=a",
        "--rdzv-id=a",
        "--master-addr=a",
        "--master-port=1",
    ],
)
def test_given_options_of_the_rendezvous_suppress_the_advice(option):
    assert offer(recorded(STEP), option) == ""
    name, _, value = option.lstrip("-").partition("=")
    variable = "PET_" + name.replace("-", "_").upper()
    assert offer(recorded(STEP), **{variable: value or "1"}) == ""


@pytest.mark.parametrize(
    ("advice", "grace", "patience"),
    [
        ({}, 30.0, 1),
        ({"OMPI_MCA_odls_base_sigkill_timeout": "30"}, 30.0, 30),
        ({"OMPI_MCA_odls_base_sigkill_timeout": "31"}, 30.0, None),
        ({"PRTE_MCA_odls_base_sigkill_timeout": "31"}, 30.0, None),
        ({"OMPI_MCA_odls_base_sigkill_timeout": "long"}, 30.0, 1),
        ({}, 0.5, None),
        ({}, 0.0, None),
        ({"TORCHELASTIC_RUN_ID": "outer"}, 30.0, None),
        ({"OMPI_COMM_WORLD_SIZE": None}, 30.0, None),
    ],
)
def test_an_mpirun_that_kills_before_the_grace_is_over(advice, grace, patience):
    warning = warn_of_hasty_stop(grace, recorded("openmpi-1x1-rank0", **advice))
    if patience is None:
        assert warning == ""
    else:
        assert f"processes {patience} s after SIGTERM" in warning
        assert "--mca odls_base_sigkill_timeout" in warning
