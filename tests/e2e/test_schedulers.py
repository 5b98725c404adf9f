"""Launchers in a job step of Slurm, and without one."""

from __future__ import annotations

import socket

import pytest
from plaunch_schedulers.slurm import FIRST_PORT, PORTS

pytest.importorskip("torch.distributed")

RANKS = "RANK WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE"


@pytest.fixture
def job():
    """The id of a job whose port is free on this machine."""
    for number in range(1, PORTS):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", FIRST_PORT + number))
            except OSError:
                continue
            return number
    pytest.fail("no port is free")


def task(job, node, nodes, tasks_per_node=1):
    """The environment of a task, as Slurm sets it."""
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": "0",
        "SLURM_NNODES": str(nodes),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_TASKS": str(nodes * tasks_per_node),
        "SLURM_STEP_TASKS_PER_NODE": f"{tasks_per_node}(x{nodes})",
        # Both names stand for this machine.
        "SLURM_STEP_NODELIST": "localhost,127.0.0.1",
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": "0",
    }


def test_two_tasks_of_a_step_are_one_world(agents, job):
    # The second node starts first, and still gets its own index.
    nodes = [
        agents.start(
            "--scheduler=slurm",
            "--nproc-per-node=2",
            name=f"task{node}",
            LOGLEVEL="INFO",
            **task(job, node, 2),
        )
        for node in (1, 0)
    ]
    workers = agents.until_round(0, *nodes, workers=2)
    assert [tuple(worker[name] for name in RANKS.split()) for worker in workers] == [
        ("0", "4", "0", "2"),
        ("1", "4", "0", "2"),
        ("2", "4", "1", "2"),
        ("3", "4", "1", "2"),
    ]
    assert [worker["RANK"] for worker in nodes[1].workers()] == ["0", "1"]
    # A launch that succeeds at once logs nothing.
    agents.until(lambda: all("run id slurm-" in node.stderr for node in nodes), "what they say")
    agents.finish(*nodes)
    for node in nodes:
        assert f"rdzv_endpoint=localhost:{FIRST_PORT + job} (SLURM_STEP_NODELIST, " in node.stderr
        assert f"rdzv_id=slurm-{job}.0 (SLURM_JOB_ID, SLURM_STEP_ID)" in node.stderr


def test_several_launchers_on_one_node_are_refused(plaunch, job):
    script = plaunch.write("never.py", "raise SystemExit(1)")
    done = plaunch.run("--scheduler=slurm", script, **task(job, 0, 2, tasks_per_node=8))
    assert done.returncode == 2
    assert "runs 8 launchers on one node" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_drop_in_does_not_wait_and_gets_a_hint(plaunch, job):
    """As with torchrun, launchers without options are separate jobs, as in a sweep."""
    # One write per line, because the workers share a pipe.
    text = "import os\nos.write(1, (os.environ['WORLD_SIZE'] + '\\n').encode())\n"
    text += "import sys, time\ntime.sleep(float(sys.argv[1]))\n"  # the hint comes after a second
    script = plaunch.write("world.py", text)
    for argv, environ, is_told in [
        (["--nproc-per-node=2"], task(job, 1, 2), True),
        (["--nproc-per-node=2"], task(job, 0, 2, tasks_per_node=8), False),
        (["--scheduler=none", "--nproc-per-node=2"], task(job, 0, 2), False),
        (["--standalone", "--nproc-per-node=2"], task(job, 0, 2), False),
        (["--nnodes=1", "--nproc-per-node=2"], task(job, 1, 2), False),
    ]:
        pause = "1.2" if is_told else "0"
        done = plaunch.run(*argv, script, pause, LOGLEVEL="INFO", **environ)
        assert done.stdout.split() == ["2", "2"], done.stderr
        assert "from slurm" not in done.stderr
        assert ("--scheduler=slurm makes them one" in done.stderr) is is_told
