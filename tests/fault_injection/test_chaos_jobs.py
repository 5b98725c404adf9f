"""Jobs of real agents with faults from a seed; see `jobs.py`."""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from types import SimpleNamespace

import fault_injection.jobs as chaos_jobs
import pytest
from fault_injection.jobs import Happened, Job, Node
from fault_injection.test_observations import GONE, entry, formed, lasting, observe
from plaunch_testing.simulation import FaultKind, InjectedFault, Script, StoreKind, make_script
from plaunch_testing.simulation.checks import find_faults
from plaunch_testing.simulation.record import AgentRecord

from helpers.machine_parts import need

SEEDS = 1  # runs of each store in each run of the suite; `jobs.py` and `tools/soak` do more


def skip_without(store):
    if store is StoreKind.ETCD:
        need("etcd")
    elif store is StoreKind.TCP:
        pytest.importorskip("torch.distributed")


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
@pytest.mark.parametrize("store", [StoreKind.JOB, StoreKind.ETCD])
def test_nothing_is_wrong_with_a_job_that_has_faults(store, seed):
    skip_without(store)
    assert chaos_jobs.run(store, seed) == ""


@pytest.mark.exhaustive
@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "options",
    [{}, {"cables": True}, {"preload": "decimal"}, {"preload": "torch"}],
    ids=["", "cables", "decimal", "torch"],
)
@pytest.mark.parametrize("store", chaos_jobs.STORES)
def test_many_jobs(store, options):
    skip_without(store)
    if options.get("cables"):
        need("networks")
    if "preload" in options:
        pytest.importorskip(options["preload"])
    found = [chaos_jobs.run(store, seed, **options) for seed in range(100, 120)]
    assert not any(found), "\n".join(found)


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "bug", "check"),
    [
        (FaultKind.FAIL, "a failure is not charged", "charges"),
        (FaultKind.STOP_JOB, "a stop that was requested ends as a success", "successes"),
    ],
)
def test_a_deliberate_bug_is_found(tmp_path, kind, bug, check):
    script = Script(
        seed=1, nodes=2, min_nodes=2, max_nodes=2, workers=1, max_restarts=1, starts=(0.0, 0.0),
        offsets=(0.0, 0.0), stop_times=(0.2, 0.2), duration=4.0,
        faults=(InjectedFault(2.0, kind, node=1, value=3),),
    )  # fmt: skip
    job = Job(tmp_path, script, bug=bug)
    try:
        findings = job.run()
    finally:
        job.end()
    assert check in {finding.partition(":")[0] for finding in findings}, job.describe()


# --- records --------------------------------------------------------------------------------------

WORLD = {"group_world_size": 2, "master_addr": "n0", "master_port": 1}


def create(folder, codes=(0, 0), ledger=None, **facts):
    """Return a job of two nodes that is over."""
    script = make_script(random.Random(1), 1, StoreKind.JOB)
    script = replace(script, nodes=2, min_nodes=1, max_nodes=2, workers=1)
    job = Job(folder, script, preload=facts.pop("preload", ""))
    ledger = [*lasting(0, 1.0), *lasting(1, 1.0)] if ledger is None else ledger
    outcomes = ["succeeded" if code == 0 else "failed" for code in codes]
    events = {
        10 + number: [
            ("rendezvous.completed", 1.0, WORLD),
            ("launcher.finished", 3.0, {"outcome": outcome}),
        ]
        for number, outcome in enumerate(outcomes)
    }
    job.observations = observe(folder, ledger, [formed(10), formed(11)], events, **facts)
    for number, code in enumerate(codes):
        log = folder / f"n{number}.0.log"
        log.write_text("".join(f"L 0 {number} {GONE + number} {n} {x}\n" for n, x in TEXTS))
        process = SimpleNamespace(pid=10 + number, returncode=code)
        record = AgentRecord(f"n{number}.0", f"n{number}", 0.5, 3.5)
        job.nodes.append(Node(number, process, log, record))
    return job


TEXTS = [(0, ""), (1, "x"), (2, "last")]


def judge(job, unfinished=(), left=()):
    return {text.partition(":")[0] for text in find_faults(job._to_record(unfinished, left))}


def test_a_job_without_findings(tmp_path):
    assert judge(create(tmp_path)) == set()


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"codes": (0, 3)}, {"codes", "explained", "successes"}),
        ({"codes": (0, -15)}, {"codes", "explained", "successes"}),
        ({"ledger": [*lasting(0, 1.0), entry("start", 1, 1.0)]}, {"successes"}),
        ({"ledger": [*lasting(0, 1.0), *lasting(0, 1.0, pid=GONE - 9)]}, {"ranks"}),
    ],
)
def test_wrong_ends_are_found(tmp_path, facts, found):
    assert judge(create(tmp_path, **facts)) & found == found


@pytest.mark.parametrize("text", ["Traceback (most recent call last)", "an internal error"])
def test_unexpected_launcher_messages_are_found(tmp_path, text):
    job = create(tmp_path)
    job.nodes[1].log.write_text(job.nodes[1].log.read_text() + text)
    assert judge(job) == {"errors"}


def test_lost_lines_are_found_unless_their_launcher_was_killed(tmp_path):
    job = create(tmp_path)
    lines = job.nodes[1].log.read_text().splitlines()
    job.nodes[1].log.write_text(lines[0] + "\n")
    assert judge(job) == {"output"}
    job.nodes[1].is_cut_off = True
    assert "output" not in judge(job)


def test_a_request_that_was_refused_explains_nothing(tmp_path):
    def stopped(code):
        folder = tmp_path / str(code)
        folder.mkdir()
        ledger = [entry("start", 0, 1.0), entry("start", 1, 1.0)]
        job = create(folder, (143, 143), ledger)
        request = SimpleNamespace(returncode=code)
        one = Happened(FaultKind.STOP_JOB, "n0", 2.0, request=request, node=job.nodes[0])
        job.happened.append(one)
        return judge(job)

    assert "explained" not in stopped(0)
    assert "explained" in stopped(1)


def test_unfinished_launchers_and_processes_that_are_left_are_found(tmp_path):
    job = create(tmp_path)
    assert judge(job, ["n1.0"], ["process 7 (train.py)"]) == {"time", "leftovers"}


STOPPED = "the fork server (pid 7) did not answer; workers are started afresh meanwhile"


@pytest.mark.parametrize(
    ("forked", "log", "count"), [(True, "", 0), (False, "", 2), (False, STOPPED, 1)]
)
def test_missing_forks_are_found(tmp_path, forked, log, count):
    ledger = [entry("start", rank, 1.0, forked=forked) for rank in (0, 1)]
    job = create(tmp_path, ledger=ledger, preload="decimal")
    job.nodes[1].log.write_text(log)
    assert len(list(job._find_wrong_forks())) == count


def test_a_launcher_without_signal_handlers_ends_as_any_program(tmp_path):
    job = create(tmp_path, (0, -signal.SIGTERM), ledger=lasting(0, 1.0, world=1))
    one = Happened(FaultKind.SIGNAL, "n1", 0.6)
    job.happened.append(one)
    job.nodes[1].record.ends_by_itself = True
    record = job._to_record([], [])
    assert record.nodes[1].exit_code == 143
