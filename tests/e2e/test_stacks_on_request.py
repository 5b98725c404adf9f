"""`plaunchctl stacks`: the stacks of all workers of a job."""

from __future__ import annotations

import json

import pytest

from helpers.nodes import options
from helpers.stacks import readable_stacks  # noqa: F401 - a fixture
from helpers.waiting import wait_until

pytestmark = pytest.mark.usefixtures("readable_stacks")

# Rank 2 does not reach the operation that the others wait in. Ranks of `members` have a process
# group.
HANGS = """
import os, sys, time
import torch
import torch.distributed as dist

def load_batch():
    open("loading", "w").close()
    time.sleep(600)

def train_step():
    open(f"step.{rank}", "w").close()
    dist.all_reduce(torch.ones(1))

rank, members = int(os.environ["RANK"]), int(sys.argv[1])
if rank < members:
    dist.init_process_group("gloo", rank=rank, world_size=members)
    load_batch() if rank == 2 else train_step()
while not all(map(os.path.exists, ("loading", "step.0", "step.1"))):
    time.sleep(0.05)
time.sleep(1)  # the files are made just before
sys.exit(7)
"""
LOADING = "load_batch (train.py:8)"
REDUCING = "all_reduce <- train_step (train.py:12)"


# Torch's own server answers in both, one of which waits for the other.
@pytest.mark.slow
def test_the_rank_that_a_job_waits_for_is_named_on_any_node(agents, plaunch, endpoint_of, ctl):
    pytest.importorskip("torch.distributed")
    script = plaunch.write("train.py", HANGS)
    words = options(endpoint_of("c10d"), "2", "--nproc-per-node=2", "--log-dir=logs")
    nodes = [
        agents.launch([*words, f"--node-rank={index}", script, "4"], f"node{index}", {})
        for index in range(2)
    ]
    wait_until(lambda: len(json.loads(ctl("ps", "--json").stdout)) == 2, "two launches")
    pids = [str(row["pid"]) for row in json.loads(ctl("ps", "--json").stdout)]
    lines = [f"1 rank: 2 {LOADING}", f"3 ranks: 0-1, 3 {REDUCING}"]

    def shown(pid):
        return ctl("stacks", pid).stdout.splitlines()[:2]

    wait_until(lambda: shown(pids[0]) == lines, lambda: str(ctl("stacks", pids[0])))
    assert shown(pids[1]) == lines
    told = json.loads(ctl("stacks", pids[1], "--ranks=2-3", "--json").stdout)
    assert told["lines"] == [f"1 rank: 2 {LOADING}", f"1 rank: 3 {REDUCING}"]
    assert told["silent"] == []
    assert len(told["folders"]) == 2
    for place in told["folders"]:
        assert place["folder"].startswith(str(plaunch.folder))
    refused = ctl("stacks", pids[0], "--ranks=9")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "none of them runs" in refused.stderr
    ctl("stop", pids[0])
    assert [node.exit_code() for node in nodes] != [None, None]


@pytest.mark.slow
def test_a_failure_shows_where_the_others_wait_for_each_other(plaunch):
    pytest.importorskip("torch.distributed")
    script = plaunch.write("train.py", HANGS)
    done = plaunch.run("--nproc-per-node=4", "--stacks-on-failure", script, "3")
    assert done.returncode == 7, done.stderr
    assert f"1 rank: 2 {LOADING}" in done.stderr
    assert f"2 ranks: 0-1 {REDUCING}" in done.stderr


# A data loader whose process reads, and a thread of the worker's own.
LOADS = """
import threading, time
import torch.utils.data

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return read_sample(index)

def read_sample(index):
    time.sleep(600)

def upload():
    threading.Event().wait()

def train():
    for batch in torch.utils.data.DataLoader(Slow(), num_workers=1):
        pass

if __name__ == "__main__":
    threading.Thread(target=upload, name="uploader", daemon=True).start()
    train()
"""


@pytest.mark.slow
def test_data_loaders_and_threads_are_in_whole_stacks(plaunch, ctl):
    pytest.importorskip("torch")
    script = plaunch.write("train.py", LOADS)
    with plaunch.start("--rdzv-id=job", "--log-dir=logs", script) as launch:
        try:
            wait_until(
                lambda: "read_sample" in _whole(plaunch, ctl), lambda: str(ctl("stacks", "job"))
            )
            shown = _whole(plaunch, ctl)
            lines = ctl("stacks", "job").stdout
        finally:
            launch.terminate()
        launch.communicate(timeout=60)
    worker, _, loader = shown.partition("\n  process ")
    assert "thread uploader" in worker
    assert "upload (" in worker
    assert "train (" in worker
    assert "read_sample (" in loader
    assert "1 rank: 0 read_sample (train.py:12), a loader process of rank 0; " in lines


def _whole(plaunch, ctl):
    """Return the current full stacks of rank 0."""
    told = json.loads(ctl("stacks", "job", "--json").stdout or '{"folders": []}')
    return "".join(
        (plaunch.folder / place["folder"] / "rank_0.txt").read_text() for place in told["folders"]
    )
