"""The same training on the nodes of every engine, with each kind of loss and end.

Nothing of it is left on any node within ten seconds, whatever happens.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import closing

import pytest

from helpers.engine_clusters import CLUSTERS, wait_for_nothing_left
from helpers.engine_commands import QUICK
from helpers.nodes import write_whole
from helpers.training import TRAINING, WAITING, check_learned, wait_for_learning
from helpers.waiting import wait_until

HEAVY = [pytest.mark.slow, pytest.mark.heavy]


@pytest.fixture(
    scope="module",
    params=["local", "ssh", *(pytest.param(name, marks=HEAVY) for name in ("slurm", "ray"))],
)
def cluster(request):
    """Six nodes: enough for three nodes and another one, after two tests have lost one each."""
    with closing(CLUSTERS[request.param](6)) as found:
        yield found


@pytest.fixture
def start(cluster, launch):
    """Start a program on three nodes."""

    def start(program, *options, spares=0, further=0):
        if program == TRAINING:
            pytest.importorskip("torch.distributed")
        (launch.folder / "train.py").write_text(program)
        return launch(
            "--nnodes=3", f"--spares={spares}", "--nproc-per-node=1", *options, "train.py",
            by=cluster.launch, nodes=3 + spares, further=further,
        )  # fmt: skip

    return start


# A training takes many seconds, most of them to import torch.
every_program = pytest.mark.parametrize(
    "program",
    [
        pytest.param(WAITING, id="waiting"),
        pytest.param(TRAINING, id="training", marks=[*HEAVY, pytest.mark.exhaustive]),
    ],
)


def wait_for_round(job, round_=0):
    """Wait for the workers, and for progress of a training."""
    workers = job.wait_for_world(3, round_)
    if (job.folder / "train.py").read_text() == TRAINING:
        wait_for_learning(job, round_)
    return workers


def lose_node(cluster, job, workers):
    """Let a node fail whose loss does not end the job; return its name."""
    lost = next(worker for worker in workers if worker["node"] not in cluster.kept)
    cluster.lose(job, lost)
    return lost["node"]


def nodes_of(workers):
    return {worker["node"] for worker in workers}


def finish(cluster, job):
    write_whole(job.folder / "exit", 0)
    job.wait(0)
    wait_for_nothing_left(cluster, job)


@pytest.mark.slow
@pytest.mark.heavy
def test_a_training_learns_and_continues_when_a_node_is_lost(cluster, start):
    job = start(TRAINING, "--max-restarts=3", QUICK, further=1)
    lost = lose_node(cluster, job, wait_for_round(job))
    assert lost not in nodes_of(wait_for_round(job, 1))
    assert f" is started in the place of {lost}" in job.err
    finish(cluster, job)
    check_learned(job, rounds=2)


@every_program
def test_a_spare_takes_over(cluster, start, program):
    job = start(program, "--max-restarts=3", QUICK, spares=1)
    before = wait_for_round(job)
    job.wait_for("waits for a place")
    [spare] = {*re.findall(r"\[(.*)\] plaunch: .* waits for a place", job.err)}
    assert spare not in nodes_of(before)
    lost = lose_node(cluster, job, before)
    assert nodes_of(wait_for_round(job, 1)) == nodes_of(before) - {lost} | {spare}
    finish(cluster, job)


@every_program
def test_the_agent_of_the_first_node_is_killed(cluster, start, program):
    """It costs one restart, as the command hosts the store."""
    job = start(program, "--max-restarts=3", QUICK, spares=1)
    first, *others = wait_for_round(job)
    job.wait_for("waits for a place")
    os.kill(job.agent_of(first), signal.SIGKILL)
    assert nodes_of(wait_for_round(job, 1)) > nodes_of(others)
    finish(cluster, job)
    assert f"plaunch: {first['node']} is lost: its agent ended with " in job.err
    assert ", hosted by this command; " in job.err
    assert {worker["PLAUNCH_ROUND"] for worker in job.workers()} == {"0", "1"}


@every_program
def test_ctrl_c_ends_the_job(cluster, start, program):
    job = start(program)
    wait_for_round(job)
    job.signal(signal.SIGINT)
    job.wait(128 + signal.SIGINT)
    wait_for_nothing_left(cluster, job)


@every_program
def test_nothing_is_left_if_the_command_is_killed(cluster, start, program):
    job = start(program)
    wait_for_round(job)
    assert len(job.agents()) == 3

    def titles():
        return [title[0] for title in job.processes().values()]

    # A round has begun before its workers are the programs that they execute.
    wait_until(lambda: titles().count("sleep") == 3, lambda: f"three workers: {titles()}")
    job.kill()
    wait_for_nothing_left(cluster, job)
