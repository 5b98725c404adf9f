"""Real jobs over gloo fail: the console names the cause, not its victims."""

from __future__ import annotations

import os
import signal
import time

import pytest
from plaunch.process import read_process

from helpers.nodes import options
from helpers.waiting import wait_for_files

# Trains over gloo until a file says what is to happen to its rank.
TRAINING = """\
import os, pathlib, sys, time
import torch, torch.distributed as dist
def step(model, batch):
    return model(batch).sum()
dist.init_process_group("gloo")
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
model, ones = torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.ones(4)
dist.all_reduce(ones)
pathlib.Path(f"pid.{rank}.{attempt}").write_text(str(os.getpid()))
while not os.path.exists("finish"):
    dist.all_reduce(ones)
    if os.path.exists(f"fail.{rank}.{attempt}"):
        step(model, torch.ones(2, 3))
    time.sleep(0.02)
"""
STEP, REDUCE = "train.py:4", "train.py:11"
QUICK = "keep_alive_interval=0.4,keep_alive_max_attempt=8"  # a lost node is noticed in 3 to 4 s

pytestmark = pytest.mark.slow


@pytest.fixture
def job(plaunch, agents, endpoint_of):
    pytest.importorskip("torch.distributed")
    script = plaunch.write("train.py", TRAINING)

    def start(count, *more, backend="c10d", nnodes=None, conf=QUICK):
        where = endpoint_of(backend)
        argv = options(where, nnodes or count, *more, backend=backend, conf=conf)
        nodes = []
        for index in range(count):
            environ = {"OMP_NUM_THREADS": "1"}
            rank = [f"--node-rank={index}"] if backend == "c10d" and nnodes is None else []
            nodes.append(agents.launch([*argv, *rank, script], f"node{index}", environ))
        until_trained(agents, range(count))
        return nodes

    return start


def until_trained(agents, ranks, attempt=0):
    wait_for_files(*(agents.folder / f"pid.{rank}.{attempt}" for rank in ranks))
    time.sleep(0.3)


def pid_of(agents, rank):
    return int((agents.folder / f"pid.{rank}.0").read_text())


def said(node, count=3):
    """The first lines that the launcher says after the one at its start, apart from its store."""
    lines = [line for line in node.stderr.splitlines() if line.startswith("plaunch: ")]
    routine = ("plaunch: run id", "plaunch: this node hosts", "plaunch: round ")
    return [line for line in lines if not line.startswith(routine)][:count]


def test_an_exception_beneath_frames_of_torch(agents, job):
    nodes = job(2, "--max-restarts=0")
    agents.tell("fail.1.0", 0)
    assert [node.exit_code() for node in nodes] == [1, 1]
    for node in nodes:
        cause = f"RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x4) ({STEP})"
        assert any("rank 1 on " in line and cause in line for line in said(node)), node.stderr
        (headline,) = [line for line in node.stderr.splitlines() if " failed after " in line]
        assert headline.startswith("plaunch: rank 1 on ")
        assert headline.endswith(cause)


def test_a_killed_worker_is_the_cause_of_what_its_peers_say(agents, job):
    nodes = job(2, "--max-restarts=1")
    os.kill(pid_of(agents, 1), signal.SIGKILL)
    until_trained(agents, range(2), attempt=1)
    (agents.folder / "finish").touch()
    assert [node.exit_code() for node in nodes] == [0, 0]
    for node in nodes:
        lines = said(node)
        assert any("rank 1 on " in line and "killed by SIGKILL" in line for line in lines), lines
        assert any("restart 1 of 1" in line for line in lines), lines
    assert "Connection closed by peer" in nodes[0].stderr or "reset by peer" in nodes[0].stderr


@pytest.mark.parametrize("backend", ["c10d", "etcd-v2"])
def test_a_lost_node_is_named_while_its_peers_wait(agents, job, backend):
    """The node dies with its workers; those of the other node say that a peer is gone."""
    nodes = job(2, "--max-restarts=0", backend=backend, conf=f"{QUICK},join_timeout=15")
    victim, survivor = nodes[1], nodes[0]
    rank = next(r for r in range(2) if read_process(pid_of(agents, r)).ppid == victim.process.pid)
    pid = pid_of(agents, rank)
    victim.kill()
    os.kill(pid, signal.SIGKILL)
    assert survivor.exit_code() == 111
    lines = said(survivor)
    lost = f"(index {rank}) was lost: no heartbeat for "
    assert any(lost in line for line in lines), survivor.stderr
    # What its workers have said comes before only if it was known long before the loss.
    for line in lines[: next(n for n, line in enumerate(lines) if lost in line)]:
        assert line.startswith(f"plaunch: rank {1 - rank} on ")
        assert " lost a peer: RuntimeError: " in line
        assert f"({REDUCE}); all workers are stopped" in line
    waiting = [line for line in survivor.stderr.splitlines() if "waiting for" in line]
    assert all(lost in line for line in waiting if "needs 2 nodes" in line)
    assert lost in survivor.stderr.splitlines()[-1]
