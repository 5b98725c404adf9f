"""Workers on the GPU: groups, forks, restarts."""

from __future__ import annotations

import json
import re

import pytest

pytestmark = pytest.mark.gpu

EVENTS = ("--event-log-handler=jsonl", "--event-conf=jsonl.path=events.jsonl")


def is_forked(plaunch):
    """For each start of a worker, whether it was forked from the fork server."""
    events = map(json.loads, (plaunch.folder / "events.jsonl").read_text().splitlines())
    started = [event for event in events if event["name"] == "plaunch.worker.started"]
    return [bool(event["metadata"]["forked"]) for event in started]


def test_eight_workers_share_the_device(plaunch):
    done = plaunch.run("--nproc-per-node=8", "group.py", "gloo")
    assert done.returncode == 0, done.stderr
    said = [plaunch.said(f"group.{rank}") for rank in range(8)]
    assert all(one == {"work": 256.0, "sum": 28.0, "world": 8} for one in said)


def test_one_worker_with_nccl(plaunch, gpu):
    done = plaunch.run("--nproc-per-node=1", "group.py", gpu.nccl)
    assert done.returncode == 0, done.stderr
    assert plaunch.said("group.0") == {"work": 256.0, "sum": 0.0, "world": 1}


def test_preload(plaunch):
    done = plaunch.run(
        *("--nproc-per-node=2", "--max-restarts=1", "--preload=torch", *EVENTS), "context.py"
    )
    assert done.returncode == 0, done.stderr
    said = [plaunch.said(f"context.{attempt}.0") for attempt in (0, 1)]
    assert [(one["imported"], one["initialized"], one["work"]) for one in said] == [
        (True, False, 256.0)
    ] * 2
    assert is_forked(plaunch) == [True] * 4, done.stderr


@pytest.mark.parametrize("words", [[], ["--preload=torch"]], ids=["fresh", "preloaded"])
def test_restart(plaunch, measured, words):
    done = plaunch.run("--nproc-per-node=1", "--max-restarts=1", *words, "context.py")
    assert done.returncode == 0, done.stderr
    first, second = (plaunch.said(f"context.{attempt}.0") for attempt in (0, 1))
    measured(f"{second['at'] - first['at']:.1f} s from one result on the device to the next")


def test_a_worker_is_killed_in_a_step(plaunch):
    done = plaunch.run(
        *("--nproc-per-node=1", "--max-restarts=1"),
        *("--inject=kill:rank=0,step-file=in-step-3", "steps.py"),
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"kill:rank=0,step-file=in-step-3: SIGKILL to rank 0", done.stderr)
    assert plaunch.said("done") == {"attempt": 1, "first": 3, "weight": 6.0}
