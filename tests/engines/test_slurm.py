"""The engine `slurm` in a real Slurm of three nodes; test_every_engine.py has more.

Skipped where Slurm is not installed, or this user may not create namespaces.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from helpers.engine_clusters import SlurmNodes, wait_for_nothing_left
from helpers.engine_commands import QUICK
from helpers.nodes import write_whole
from helpers.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.heavy]


@pytest.fixture
def cluster():
    with closing(SlurmNodes()) as found:
        yield found


@pytest.fixture
def start(launch, cluster):
    """Start a command in the cluster."""

    def start(*words, on="--on=slurm", inside=()):
        return launch(on, *words, by=cluster.start, inside=inside)

    start.folder = launch.folder
    return start


def hosts_of(workers):
    return [worker["host"] for worker in workers]


def agent_on(node, job):
    """Return the agent on a node."""
    [pid] = (
        pid
        for pid in job.agents()
        if f"SLURMD_NODENAME={node}" in Path(f"/proc/{pid}/environ").read_text().split("\0")
    )
    return pid


def messages_of(job):
    """Return the lines that are not of a node."""
    return [line for line in job.text().splitlines() if not line.startswith("[")]


def kill_salloc(job):
    [pid] = (pid for pid, title in job.processes().items() if title[0] == "salloc")
    os.kill(pid, signal.SIGKILL)


def test_a_job_on_three_nodes(start, cluster):
    write_whole(start.folder / "exit", 0)
    job = start("--nnodes=3", "--nproc-per-node=2", "worker.py")
    job.wait(0)
    hosts = hosts_of(job.wait_for_world(6))
    assert sorted(hosts) == [f"node0{n}" for n in (1, 1, 2, 2, 3, 3)]
    wait_for_nothing_left(cluster, job)


def test_a_failure_on_one_node_is_reported_once(start, cluster):
    job = start("--nnodes=3", "worker.py")
    hosts = hosts_of(job.wait_for_world(3))
    write_whole(start.folder / "exit.1.0", 7)
    job.wait(7)
    assert job.text().count("exit code 7\n") == 1
    assert f"rank 1 on {hosts[1]} failed" in job.err
    wait_for_nothing_left(cluster, job)


def test_nothing_is_left_of_a_command_and_an_salloc_that_are_killed(start, cluster):
    job = start("--nnodes=3", "worker.py")
    job.wait_for_world(3)
    kill_salloc(job)
    job.kill()
    wait_for_nothing_left(cluster, job)


def test_the_allocation_is_released_after_salloc_was_killed(start, cluster):
    job = start("--nnodes=3", "worker.py")
    job.wait_for_world(3)
    kill_salloc(job)
    write_whole(start.folder / "exit", 0)
    job.wait(0)
    wait_for_nothing_left(cluster, job)


def test_agents_end_if_the_host_of_the_command_fails(start, cluster):
    job = start("--nnodes=3", "--silence-limit=7", "worker.py")
    job.wait_for_world(3)
    time.sleep(8)  # without heartbeats, they would have ended
    assert len(job.agents()) == 3
    job.signal(signal.SIGSTOP)
    wait_until(lambda: not job.agents(), job.processes)
    job.signal(signal.SIGKILL)
    os.killpg(job.process.pid, signal.SIGCONT)  # nsenter stops with its child
    job.wait(-signal.SIGKILL)
    wait_for_nothing_left(cluster, job)


def test_a_killed_agent_is_replaced(start, cluster):
    job = start("--nnodes=3", QUICK, "worker.py")
    job.wait_for_world(3)
    os.kill(agent_on("node02", job), signal.SIGKILL)
    assert "node02" in hosts_of(job.wait_for_world(3, round_=1))
    write_whole(start.folder / "exit", 0)
    job.wait(0)
    assert "node02 is started in the place of node02" in job.err
    wait_for_nothing_left(cluster, job)


def test_a_lost_node_is_not_used_again(start, cluster):
    job = start("--nnodes=2:3", QUICK, "worker.py")
    job.wait_for_world(3)
    cluster.lose_node("node03")
    assert sorted(hosts_of(job.wait_for_world(2, round_=1))) == ["node01", "node02"]
    write_whole(start.folder / "exit", 0)
    job.wait(0)
    assert "node03 is not replaced: job 1 has no other node" in job.err
    wait_for_nothing_left(cluster, job)


def test_too_few_nodes_end_the_job(start, cluster):
    job = start("--nnodes=3", QUICK, "worker.py")
    job.wait_for_world(3)
    cluster.lose_node("node03")
    job.wait(111)
    text = "node03 lost; 2 nodes are left, the job needs 3"
    assert any(text in message for message in messages_of(job))
    wait_for_nothing_left(cluster, job)


def test_a_spare_node_of_an_allocation_replaces_another(start, cluster):
    inside = ["salloc", "--nodes=3", "--ntasks-per-node=4"]
    job = start("--nnodes=2", QUICK, "worker.py", inside=inside)
    job.wait_for_world(2)
    os.kill(agent_on("node02", job), signal.SIGKILL)
    assert sorted(hosts_of(job.wait_for_world(2, round_=1))) == ["node01", "node03"]
    write_whole(start.folder / "exit", 0)
    job.wait(0)
    assert "node03 is started in the place of node02" in job.err


def test_an_allocation_that_is_too_small(start, cluster):
    inside = ["salloc", "--quiet", "--nodes=2"]
    job = start("--nnodes=3", "worker.py", inside=inside)
    job.wait(2)
    assert "--on=slurm has 2 nodes, and the job needs at least 3" in job.err


def test_scancel_ends_the_job(start, cluster):
    job = start("--nnodes=3", "worker.py")
    job.wait_for_world(3)
    cluster.run("scancel", *cluster.jobs())
    job.wait(128 + signal.SIGTERM)
    assert "CANCELLED AT" in job.err
    wait_for_nothing_left(cluster, job)


def test_workers_get_a_warning_of_slurms_once(start, cluster):
    job = start("--nnodes=3", "--signal-policy=notify", "worker.py")
    job.wait_for_world(3)
    cluster.run("scancel", "--signal=USR1", *cluster.jobs())
    job.wait_for('"notice": 10', 3)
    write_whole(start.folder / "exit", 0)
    job.wait(0)
    assert job.text().count('"notice": 10') == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--partition=nope", "invalid partition specified: nope"),
        ("--mem=999G", "Memory specification can not be satisfied"),
        ("--frob", "salloc: unrecognized option '--frob'"),
    ],
)
def test_a_request_that_slurm_rejects(start, cluster, options, message):
    job = start("--nnodes=3", f"--slurm-options={options}", "worker.py")
    job.wait(111)
    (line,) = messages_of(job)
    assert "nothing was started: slurm: the agent could not be started (1): " in line
    assert message in line
    wait_for_nothing_left(cluster, job)


def test_a_job_that_stays_pending(start, cluster):
    job = start("--nnodes=4", "--start-limit=4", "worker.py")
    job.wait(111)
    assert re.search(
        r"slurm: no agent has reported within 4 s \(--start-limit\): job 1 is pending: Part\w+; ",
        messages_of(job)[-1],
    )
    wait_for_nothing_left(cluster, job)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_a_pending_job_ends_with_the_command(start, cluster, signum):
    job = start("--nnodes=4", "worker.py")
    job.wait_for("job 1 is pending")
    job.signal(signum)
    job.end()
    wait_for_nothing_left(cluster, job)


def test_a_batch_job(start, cluster):
    submitted = start("--nnodes=3", "worker.py", on="--on=slurm:batch").wait(0)
    (script,) = start.folder.glob("*.sbatch")
    output = start.folder / "slurm-1.out"
    assert messages_of(submitted) == [
        f"submitted job 1 ({script})",
        f"output: tail -F {shlex.quote(str(output))}",
        "state: squeue --jobs=1    end: scancel 1",
    ]
    wait_until(lambda: output.exists() and output.read_text().count('"RANK"') == 3, "it runs")
    tokens = {
        variable
        for pid in submitted.find("plaunch")
        for variable in Path(f"/proc/{pid}/environ").read_text().split("\0")
        if variable.startswith("PLAUNCH_RDZV_TOKEN=")
    }
    assert len(tokens) == 1
    assert "TOKEN" not in script.read_text()
    write_whole(start.folder / "exit", 0)
    wait_until(lambda: not cluster.jobs(), output.read_text)
    submitted.check_nothing_left()
    assert "JobState=COMPLETED" in cluster.run("scontrol", "show", "job", "1")


def test_a_batch_job_that_slurm_rejects(start, cluster):
    options = ("--nnodes=3", "--slurm-options=--partition=nope")
    job = start(*options, "worker.py", on="--on=slurm:batch")
    job.wait(2)
    (line,) = messages_of(job)
    assert "the job was not submitted: sbatch: error: invalid partition" in line
    assert not list(start.folder.glob("*.sbatch"))
