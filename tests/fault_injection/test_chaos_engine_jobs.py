"""Jobs of engines with random faults, and what is found in them; see `engine_jobs.py`."""

from __future__ import annotations

import random

import fault_injection.engine_jobs as chaos_jobs
import pytest
from fault_injection.engine_jobs import CLUSTERS, Fault, Job
from fault_injection.test_observations import GONE, entry, formed, lasting, observe
from plaunch_testing.simulation.checks import find_faults

from helpers.engine_clusters import LocalNodes

SEEDS = (109, 125, 144, 186)  # each ended with 0 once, although workers had not finished


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["local", "ssh"])
def test_a_job_ends_as_its_workers_did(engine):
    cluster = CLUSTERS[engine]()
    try:
        found = [chaos_jobs.run(cluster, seed) for seed in SEEDS]
    finally:
        cluster.close()
    assert not any(found), "\n".join(found)


# --- records --------------------------------------------------------------------------------------

ALL = [*lasting(0, 1.0), *lasting(1, 1.0)]
TEXTS = ["", "x", "last"]


def lines(rank, count=3):
    return [f"[node{rank}] L 0 {rank} {GONE + rank} {n} {TEXTS[n]}" for n in range(count)]


def create(folder, code=0, ledger=ALL, out=None, err="", faults=(), left=None, agents=True):
    """Return a job that is over, and what the checks find in it."""
    job = Job(folder, LocalNodes(), random.Random(1))
    job.nodes, job.least, job.workers, job.restarts = 2, 1, 1, 1
    outcome = {"outcome": "succeeded" if code == 0 else "failed", "exit_code": code}
    world = {"group_world_size": 2, "master_addr": "n0", "master_port": 1}
    events = {
        pid: [("rendezvous.completed", 1.0, world), ("launcher.finished", 3.0, outcome)]
        for pid in (10, 11)
    }
    job.observations = observe(
        folder, ledger, [formed(10), formed(11)], events if agents and code is not None else {}
    )
    job.code, job.err, job.faults = code, err, list(faults)
    job.out = [*lines(0), *lines(1)] if out is None else out
    job.record = job._to_record(code, 4.0, left or {})
    return job


def judge(*args, **facts):
    job = create(*args, **facts)
    findings = [*find_faults(job.record), *job._find_avoidable_end()]
    return {text.partition(":")[0] for text in findings}


def fault(kind="kill agent", phase="saving", at=2.0, **values):
    return Fault(kind, phase, 0.0, at=at, **values)


SIGTERM = fault("command SIGTERM", value=15)
LOSS = fault(agent=11, hit={11})
STARTED = [entry("start", 0, 1.0), entry("start", 1, 1.0)]


@pytest.mark.parametrize(
    "fine",
    [
        {},
        {"code": 143, "ledger": STARTED, "out": [], "faults": [SIGTERM]},
        {"faults": [SIGTERM]},
        {"code": 111, "ledger": STARTED, "out": [], "faults": [LOSS]},
        {"code": -9, "out": lines(0, 1), "faults": [fault("command SIGKILL", value=9)],
         "agents": False},
        {"out": [*lines(0), *lines(1, 1)], "faults": [LOSS],
         "err": "plaunch: output of node1 may be missing"},
    ],
)  # fmt: skip
def test_a_job_without_findings(tmp_path, fine):
    assert judge(tmp_path, **fine) == set()


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({"code": None}, "time"),
        ({"left": {7: ["worker.py"]}}, "leftovers"),
        ({"ledger": [], "out": []}, "successes"),
        ({"ledger": [*lasting(0, 1.0), entry("start", 1, 1.0)]}, "successes"),
        ({"out": [*lines(0), *lines(1, 2)]}, "output"),
        ({"out": [*lines(0), *lines(1, 2)], "faults": [LOSS]}, "output"),
        ({"out": [*lines(0), *lines(1), "plaunch: done"]}, "output"),
        ({"code": 143}, "explained"),
        ({"code": 1, "faults": [SIGTERM]}, "explained"),
        ({"code": 137, "ledger": STARTED, "faults": [fault(phase="all workers")]}, "restarts"),
        ({"err": 'File "/x/plaunch/cli/run.py", line 3'}, "errors"),
    ],
)
def test_wrong_ends_are_found(tmp_path, wrong, found):
    assert found in judge(tmp_path, **wrong)


def test_a_fault_that_was_not_injected_explains_nothing(tmp_path):
    late = fault("command SIGTERM", value=15, at=None)
    assert "explained" in judge(tmp_path, code=143, faults=[late])
