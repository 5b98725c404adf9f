"""Jobs with random faults; see `jobs.py`."""

from __future__ import annotations

import contextlib
import json
import os
import random
from types import SimpleNamespace

import fault_injection.jobs as chaos_jobs
import pytest
from fault_injection.jobs import Finding, Job, Node

from helpers.machine_parts import need
from helpers.programs import running_python

SEEDS = 1  # runs of each backend in each run of the suite; `jobs.py` can do more


def skip_without(backend):
    if backend == "c10d":
        pytest.importorskip("torch.distributed")
    else:
        need("etcd")


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
@pytest.mark.parametrize("backend", ["c10d", "etcd-v2"])
def test_a_job_recovers_from_random_faults(backend, seed):
    skip_without(backend)
    assert chaos_jobs.run(backend, seed) == ""


@pytest.mark.exhaustive
@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "options",
    [{}, {"cables": True}, {"preload": "decimal"}, {"preload": "torch"}],
    ids=["", "cables", "decimal", "torch"],
)
@pytest.mark.parametrize("backend", chaos_jobs.BACKENDS)
def test_many_jobs(backend, options):
    skip_without(backend)
    if options.get("cables"):
        need("networks")
    if "preload" in options:
        pytest.importorskip(options["preload"])
    found = [chaos_jobs.run(backend, seed, **options) for seed in range(100, 120)]
    assert not any(found), "\n".join(found)


# --- findings -------------------------------------------------------------------------------------

GONE = 2**22 + 1  # above all pids


def worker(rank, round_=0, attempt=0, world=2, **other):
    return {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": 0,
        "GROUP_RANK": rank,
        "GROUP_WORLD_SIZE": world,
        "TORCHELASTIC_RESTART_COUNT": attempt,
        "PLAUNCH_ROUND": round_,
        "store": f"store of round {round_}",
        "pid": GONE,
        "node": rank,
        **other,
    }


FINE = [worker(0), worker(1)]


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr(chaos_jobs, "ENDING", 0)
    job = Job(tmp_path, "c10d", random.Random(1), None, None)
    job.least, job.most, job.restarts, job.workers = 1, 2, 1, 1
    for number in range(2):
        log = tmp_path / f"{number}.log"
        log.write_text("all is well")
        job.nodes.append(Node(number, SimpleNamespace(returncode=0, poll=lambda: 0), log))
    return job


def say(job, *workers):
    (job.folder / "said").write_text("".join(json.dumps(worker) + "\n" for worker in workers))


def test_a_job_without_findings(job):
    say(job, *FINE, worker(0, 1, 0, 1), worker(0, 2, 1, 1))
    job.failures = 1
    job.check()


@pytest.mark.parametrize(
    ("workers", "found"),
    [
        ([*FINE, worker(1)], "ranks {0: 1, 1: 2}"),
        ([worker(0), worker(1, world=1)], "differ in WORLD_SIZE"),
        ([worker(0), worker(1, attempt=1)], "differ in TORCHELASTIC_RESTART_COUNT"),
        ([worker(2)], "of a world of 2 has ranks"),
        ([worker(0, world=3)], "a world of 3"),
        ([worker(0, GROUP_RANK=1)], "another rank"),
        ([worker(0, attempt=1), worker(0, 1, 0)], "attempt 0, after attempt 1"),
        ([worker(0, attempt=2)], "attempt 2"),
        ([worker(0, attempt=1)], "1 restarts after 0 failures"),
        ([*FINE, worker(0, world=1, store="another")], "round 0 comes after round 0"),
    ],
)
def test_wrong_workers_are_found(job, workers, found):
    say(job, *workers)
    with pytest.raises(Finding, match=found):
        job.check()


def test_a_job_that_all_nodes_have_left_begins_anew(job):
    job.failures = 1
    say(job, worker(0, 1, 1, 1), worker(0, world=1, store="another"))
    job.nodes[1].log.write_text("job 'x' starts again: the 1 nodes that knew it are gone: vm")
    job.check()


def test_a_spare_that_joins_after_the_job(job):
    say(job, worker(0, world=1))
    job.nodes[1].process.returncode = 113
    job.check()


def test_an_orphaned_worker_is_found(job):
    say(job, worker(0, world=1, pid=os.getpid()))
    with pytest.raises(Finding, match="workers are left"):
        job.check()


@pytest.mark.parametrize("text", ["Traceback (most recent call last)", "an internal error"])
def test_unexpected_launcher_messages_are_found(job, text):
    say(job, *FINE)
    job.nodes[1].log.write_text(text)
    with pytest.raises(Finding, match="node 1 says"):
        job.check()


@pytest.mark.parametrize(("code", "done"), [(113, []), (143, []), (137, []), (113, ["leave"])])
def test_wrong_exit_codes_are_found(job, code, done):
    say(job, *FINE)
    job.nodes[1].process.returncode = code
    job.nodes[1].done += done
    with pytest.raises(Finding):
        job.check()


STOPPED = "the fork server (pid 7) did not answer; workers are started afresh meanwhile"


@pytest.mark.parametrize(
    ("workers", "log", "done", "found"),
    [
        ([worker(0, forked=True), worker(1, forked=True)], "", [], ""),
        ([worker(0, forked=True), worker(1, forked=False)], "", [], "has not forked these"),
        ([worker(0, forked=False), worker(1, forked=True)], STOPPED, [], "has not forked these"),
        ([worker(0, forked=True), worker(1, forked=False)], STOPPED, ["hurt_fork_server"], ""),
        ([worker(0, forked=True), worker(1, forked=False)], STOPPED, ["kill"], "nothing was done"),
    ],
)
def test_missing_forks_are_found(job, workers, log, done, found):
    job.preload = "decimal"
    say(job, *workers)
    job.nodes[1].log.write_text(log)
    job.nodes[1].done += done
    with pytest.raises(Finding, match=found) if found else contextlib.nullcontext():
        job.check()


def test_an_orphaned_fork_server_is_found(job):
    say(job, *FINE)
    variables = {**os.environ, "PLAUNCH_FORK_SERVER": "7"}
    with running_python("-c", "input()", cwd=job.folder, env=variables):
        with pytest.raises(Finding, match="fork servers are left"):
            job.check()
    job.check()
