"""Stacks of workers in launches that are stopped."""

from __future__ import annotations

import zipfile

import pytest

from helpers.nodes import options
from helpers.stacks import readable_stacks  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("readable_stacks")

# Rank 2 is in its loader. Rank 3 fails once all others have reached their last line.
STUCK = """
import os, signal, sys, time

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]

def wait_at(place):
    open(f"{place}.{os.environ['RANK']}.{attempt}", "w").close()
    while True:
        time.sleep(60)

def load_batch():
    wait_at("loader")

def train_step():
    wait_at("step")

rank = int(os.environ["RANK"])
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if rank == 3:
    while not all(os.path.exists(f"{name}.{attempt}") for name in ("loader.2", "step.0", "step.1")):
        time.sleep(0.02)
    sys.exit(7)
elif rank == 2:
    load_batch()
else:
    train_step()
"""


def test_a_failure_shows_the_stacks_of_the_others(plaunch):
    script = plaunch.write("train.py", STUCK)
    done = plaunch.run("--nproc-per-node=4", "--stacks-on-failure", "--log-dir=logs", script)
    assert done.returncode == 7, done.stderr
    lines = done.stderr.splitlines()
    at = next(number for number, line in enumerate(lines) if "when one failed:" in line)
    one, two = (
        line.partition("ranks: " if "ranks" in line else "rank: ")[2]
        for line in lines[at + 1 : at + 3]
    )
    assert one.startswith("2 wait_at (train.py:9) <- load_batch (train.py:12)")
    assert two.startswith("0-1 wait_at (train.py:9) <- train_step (train.py:15)")
    (folder,) = (plaunch.folder / "logs").glob("*/stacks/*")
    assert folder.name == "attempt_0-1-failure"
    assert sorted(path.name for path in folder.glob("rank_*")) == [
        f"rank_{rank}.txt" for rank in range(3)
    ]
    (bundle,) = (plaunch.folder / "logs").rglob("*.zip")
    assert "stacks/attempt_0-1-failure/rank_2.txt" in zipfile.ZipFile(bundle).namelist()


def test_workers_that_get_sigkill_are_reported_with_their_stack(plaunch):
    """Without an option."""
    script = plaunch.write("train.py", STUCK)
    done = plaunch.run("--nproc-per-node=4", "--shutdown-timeout=3", script, "deaf")
    assert done.returncode == 7, done.stderr
    assert "workers that did not end before they got SIGKILL were here:" in done.stderr
    assert "load_batch (train.py:12)" in done.stderr


def test_no_stacks_if_the_plugin_is_blocked(plaunch):
    script = plaunch.write("train.py", STUCK)
    words = ("--nproc-per-node=4", "--shutdown-timeout=1", "-p", "no:stacks")
    done = plaunch.run(*words, script, "deaf")
    assert done.returncode == 7, done.stderr
    assert "sending SIGKILL" in done.stderr
    assert "were here" not in done.stderr


@pytest.mark.slow
def test_the_node_of_the_failure_shows_the_whole_job(agents, plaunch, endpoint_of):
    """In at least one attempt: on a busy machine, the other node may be too late for some."""
    script = plaunch.write("train.py", STUCK)
    words = options(
        endpoint_of("c10d"), "2", "--nproc-per-node=2", "--stacks-on-failure", "--max-restarts=2"
    )
    nodes = [
        agents.launch([*words, f"--node-rank={index}", script], f"node{index}", {})
        for index in range(2)
    ]
    assert [node.exit_code() for node in nodes] == [7, 7]
    shown = [node.stderr for node in nodes]
    assert "were here when one failed" not in shown[0]
    lines = "\n".join(line for line in shown[1].splitlines() if "wait_at" in line)
    assert "1 rank: 2 wait_at (train.py:9) <- load_batch (train.py:12)" in lines, shown
    assert "2 ranks: 0-1 wait_at (train.py:9) <- train_step (train.py:15)" in lines, shown
