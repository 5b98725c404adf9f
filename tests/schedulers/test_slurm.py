"""The variables of Slurm, in recorded environments (see their README)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from plaunch.errors import UsageError
from plaunch_network import expand_hostlist
from plaunch_schedulers.slurm import FIRST_PORT, PORTS, find_slurm_allocation

from helpers.environments import recorded

if TYPE_CHECKING:
    from plaunch.scheduling import Allocation

ENVIRONMENTS = sorted(path.stem for path in Path(__file__).parent.glob("environments/*.env"))


def summary(allocation: Allocation) -> tuple[object, ...]:
    return allocation.nnodes, allocation.node_rank, allocation.endpoint, allocation.run_id


# --- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slurm-step-1x1", (1, 0, "node01:20007", "slurm-7.0")),
        ("slurm-step-2x1-task0", (2, 0, "node01:20001", "slurm-1.0")),
        ("slurm-step-2x1-task1", (2, 1, "node01:20001", "slurm-1.0")),
        ("slurm-step-3x1-task2", (3, 2, "node01:20008", "slurm-8.0")),
        # The allocation has three nodes, the step two of them, and not the first one.
        ("slurm-step-2-of-3-task0", (2, 0, "node02:20009", "slurm-9.0")),
        ("slurm-step-2-of-3-task1", (2, 1, "node02:20009", "slurm-9.0")),
        ("slurm-second-step-task0", (2, 0, "node01:21030", "slurm-9.1")),
        ("slurm-step-pmi2-task1", (2, 1, "node01:20003", "slurm-3.0")),
        ("slurm-array-task1", (2, 1, "node01:20012", "slurm-12.0")),
        ("slurm-pty-task1", (2, 1, "node01:20015", "slurm-15.0")),
        # Slurm shows a step over several parts of a heterogeneous job as one.
        ("slurm-het-srun-task1", (2, 1, "node01:20003", "slurm-3.0")),
        ("slurm-het-step-both-task0", (3, 0, "node01:20007", "slurm-7.0")),
        ("slurm-het-step-both-task2", (3, 2, "node01:20007", "slurm-7.0")),
        ("slurm-het-step-group1-task1", (2, 1, "node02:22049", "slurm-7.2")),
        ("slurm-requeue-before-task1", (2, 1, "node01:20011", "slurm-11.0")),
        ("slurm-requeued-task0", (2, 0, "node01:20011", "slurm-11.0-restart-1")),
        ("slurm-requeued-task1", (2, 1, "node01:20011", "slurm-11.0-restart-1")),
        ("slurm-batch-1-node", (1, 0, "", "slurm-1")),
    ],
)
def test_a_step_is_an_allocation(name, expected):
    assert summary(find_slurm_allocation(recorded(name))) == expected


def test_sources():
    assert find_slurm_allocation(recorded("slurm-requeued-task1")).sources == {
        "nnodes": "SLURM_STEP_NUM_NODES",
        "node_rank": "SLURM_NODEID",
        "endpoint": "SLURM_STEP_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID",
        "run_id": "SLURM_JOB_ID, SLURM_STEP_ID, SLURM_RESTART_COUNT",
        "job_id": "SLURM_JOB_ID, SLURM_STEP_ID",
    }


def test_devices_and_processors_do_not_set_the_number_of_workers():
    environ = recorded("slurm-step-2x1-task0", SLURM_GPUS_ON_NODE="8", SLURM_CPUS_ON_NODE="64")
    assert find_slurm_allocation(environ).nproc_per_node is None


@pytest.mark.parametrize(
    "name", [name for name in ENVIRONMENTS if name.startswith(("slurm-step", "slurm-het-step"))]
)
def test_hosts_are_in_the_order_of_node_ids(name):
    environ = recorded(name)
    hosts = expand_hostlist(environ["SLURM_STEP_NODELIST"])
    assert hosts[int(environ["SLURM_NODEID"])] == environ["SLURMD_NODENAME"]


def test_only_the_nodes_of_a_step_share_endpoint_and_run_id():
    def found(name):
        allocation = find_slurm_allocation(recorded(name))
        return allocation.endpoint, allocation.run_id

    assert found("slurm-step-2-of-3-task0") == found("slurm-step-2-of-3-task1")
    first, second = found("slurm-step-2-of-3-task0"), found("slurm-second-step-task0")
    assert not set(first) & set(second)
    assert found("slurm-requeue-before-task1")[1] != found("slurm-requeued-task1")[1]


def test_a_requeued_job_keeps_its_job_id_and_gets_a_new_run_id():
    def found(name, **changes):
        allocation = find_slurm_allocation(recorded(name, **changes))
        return allocation.job_id, allocation.run_id

    assert found("slurm-requeue-before-task1") == ("slurm-11.0", "slurm-11.0")
    assert found("slurm-requeued-task1") == ("slurm-11.0", "slurm-11.0-restart-1")
    assert found("slurm-second-step-task0")[0] != found("slurm-step-2-of-3-task0")[0]
    for name in ("slurm-batch-1-node", "slurm-batch-3-nodes"):
        job_id, run_id = found(name, SLURM_RESTART_COUNT="2")
        assert run_id == f"{job_id}-restart-2"
        assert found(name) == (job_id, job_id)


@pytest.mark.parametrize(("job", "step"), [("1", "0"), ("8191", "1"), ("4294967295", "65535")])
def test_ports_are_in_their_range(job, step):
    environ = recorded("slurm-step-2x1-task0", SLURM_JOB_ID=job, SLURM_STEP_ID=step)
    port = int(find_slurm_allocation(environ).endpoint.partition(":")[2])
    assert FIRST_PORT <= port < FIRST_PORT + PORTS <= 29400


# --- outside of steps -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["slurm-batch-3-nodes", "slurm-salloc"])
def test_a_batch_script_of_several_nodes_needs_their_number(name):
    allocation = find_slurm_allocation(recorded(name))
    assert (allocation.nnodes, allocation.node_rank, allocation.endpoint) == (None, None, "")
    assert allocation.run_id
    nodes = recorded(name)["SLURM_JOB_NUM_NODES"]
    assert f"srun --nodes={nodes} --ntasks={nodes} " in allocation.missing["nnodes"]


@pytest.mark.parametrize("step", ["4294967290", "4294967291", "4294967294"])
def test_special_step_ids_are_not_steps(step):
    allocation = find_slurm_allocation(recorded("slurm-step-2x1-task0", SLURM_STEP_ID=step))
    assert allocation.nnodes is None


def test_a_part_of_a_heterogeneous_job_may_be_one_node():
    assert find_slurm_allocation(recorded("slurm-het-batch")).nnodes == 1


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "most", "variable"),
    [
        ("slurm-step-2x8-task0", 8, "SLURM_STEP_TASKS_PER_NODE"),
        ("slurm-step-2x8-task9", 8, "SLURM_STEP_TASKS_PER_NODE"),
        ("slurm-step-2-nodes-3-tasks-task2", 2, "SLURM_STEP_TASKS_PER_NODE"),
        ("slurm-het-uneven-task1", 2, "SLURM_STEP_TASKS_PER_NODE"),
        # srun was given --ntasks-per-node=1, which it ignored, as the job has eight tasks.
        ("slurm-step-ntasks-per-node-ignored-task4", 4, "SLURM_STEP_TASKS_PER_NODE"),
    ],
)
def test_several_launchers_on_one_node_are_rejected(name, most, variable):
    with pytest.raises(
        UsageError, match=f"runs {most} launchers on one node \\({variable}\\)"
    ) as e:
        find_slurm_allocation(recorded(name))
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1" in str(e.value)


STEP = "slurm-step-2x1-task1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": None, "SLURM_STEP_NUM_TASKS": "3"}, "runs 2 launchers"),
        (
            {
                "SLURM_STEP_TASKS_PER_NODE": None,
                "SLURM_STEP_NUM_TASKS": None,
                "SLURM_NTASKS": "16",
            },
            r"runs 8 launchers on one node \(SLURM_NTASKS\)",
        ),
        ({"SLURM_LOCALID": "3"}, r"runs 4 launchers on one node \(SLURM_LOCALID\)"),
        ({"SLURM_STEP_TASKS_PER_NODE": "two"}, "SLURM_STEP_TASKS_PER_NODE is 'two'"),
        ({"SLURM_JOB_ID": None, "SLURM_JOBID": None}, "SLURM_JOB_ID is not set"),
        ({"SLURM_JOB_ID": "x"}, "SLURM_JOB_ID is 'x', which is not a whole number"),
        ({"SLURM_STEP_ID": "-1"}, "SLURM_STEP_ID is '-1'"),
        ({"SLURM_NODEID": None}, "SLURM_NODEID is not set"),
        ({"SLURM_NODEID": "2"}, "SLURM_NODEID is 2 in a step of 2 nodes"),
        ({"SLURM_STEP_NUM_NODES": "0"}, "SLURM_STEP_NUM_NODES is '0'"),
        (
            {"SLURM_STEP_NUM_NODES": None, "SLURM_NNODES": None},
            "SLURM_STEP_NUM_NODES is not set",
        ),
        ({"SLURM_STEP_NODELIST": "node[01-03]"}, "which has 3 of 2 nodes"),
        ({"SLURM_STEP_NODELIST": "node[01-"}, "SLURM_STEP_NODELIST: the list of hosts 'node"),
        (
            {
                "SLURM_STEP_NODELIST": None,
                "SLURM_JOB_NODELIST": None,
                "SLURM_NODELIST": None,
            },
            "SLURM_STEP_NODELIST is not set",
        ),
        ({"SLURM_STEP_NODELIST": None, "SLURM_JOB_NODELIST": "a[1-3]"}, "has 3 of 2 nodes"),
        ({"SLURM_RESTART_COUNT": "again"}, "SLURM_RESTART_COUNT is 'again'"),
    ],
)
def test_invalid_environments(changes, message):
    with pytest.raises(UsageError, match=message) as caught:
        find_slurm_allocation(recorded(STEP, **changes))
    assert "\n" not in str(caught.value)


def test_invalid_environments_of_a_batch_script():
    environ = recorded("slurm-salloc", SLURM_JOB_NUM_NODES=None, SLURM_NNODES=None)
    with pytest.raises(UsageError, match="SLURM_JOB_NUM_NODES is not set"):
        find_slurm_allocation(environ)


def test_older_names_of_variables_are_accepted():
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST")
    without = recorded(STEP, **dict.fromkeys(names))
    assert find_slurm_allocation(without).run_id == "slurm-1.0"
    assert find_slurm_allocation(without).endpoint == "node01:20001"


def test_launchers_of_mpirun_are_rejected():
    environ = recorded("openmpi-in-slurm-3x1-rank1")
    # It looks like one of three tasks of a step.
    assert {environ[f"SLURM_STEP_{what}"] for what in ("NUM_NODES", "NUM_TASKS")} == {"3"}
    with pytest.raises(UsageError, match=re.escape("write --scheduler=mpi")):
        find_slurm_allocation(environ)


def test_all_ranks_of_mpirun_in_a_batch_script_get_the_same_error():
    """Rank 0 is on the script's node and has no step; the others have that of the daemons."""
    ranks = [recorded(f"openmpi-in-batch-3x1-rank{rank}") for rank in (0, 1)]
    assert ["SLURM_STEP_ID" in rank for rank in ranks] == [False, True]
    answers = set()
    for rank in ranks:
        with pytest.raises(UsageError) as caught:
            find_slurm_allocation(rank)
        answers.add(str(caught.value))
    (answer,) = answers
    assert "write --scheduler=mpi" in answer
