"""Jobs of engines with random faults, and what their judge finds; see `engine_jobs.py`."""

from __future__ import annotations

import re

import fault_injection.engine_jobs as chaos_jobs
import pytest
from fault_injection.engine_jobs import CLUSTERS, Facts, Fault, judge

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


# --- the judge ------------------------------------------------------------------------------------

LINES = 2  # of each worker, before its last one


def entry(event, rank, round_=0, world=2, **facts):
    worker = {"rank": rank, "round": round_, "pid": 100 + rank, "agent": 10 + rank, "attempt": 0}
    return {**worker, "world": world, "event": event, **facts}


def worker(rank, round_=0, wrote=LINES + 1, world=2):
    """Return what a worker notes in the ledger if it has written so many lines."""
    entries = [
        entry("start", rank, round_, world),
        entry("wrote", rank, round_, world, lines=wrote),
    ]
    if wrote > LINES:
        entries.append(entry("last", rank, round_, world))
    return entries


def lines(rank, count=LINES + 1, round_=0):
    texts = ["", "x", "last"]
    return [
        f"[node{rank}] L {round_} {rank} {100 + rank} {number} {texts[number]}"
        for number in range(count)
    ]


def facts(code=0, ledger=None, out=None, err="", faults=(), restarts=0, left=None):
    return Facts(
        code,
        [*worker(0), *worker(1)] if ledger is None else ledger,
        [*lines(0), *lines(1)] if out is None else out,
        err,
        list(faults),
        restarts,
        LINES,
        left or {},
    )


def fault(kind="kill agent", phase="saving", **values):
    return Fault(kind, phase, 0.0, at=1.0, **values)


SIGTERM = fault("command SIGTERM", codes=(143,))
LOSS = fault(codes=(111, 113), hit={11})


@pytest.mark.parametrize(
    "fine",
    [
        facts(),
        facts(143, [*worker(0), *worker(1, wrote=1)], [*lines(0), *lines(1, 1)], faults=[SIGTERM]),
        facts(faults=[SIGTERM]),
        facts(
            111, [*worker(0), *worker(1)], [*lines(0), *lines(1, 1)],
            "plaunch: output of node1 may be missing", [LOSS],
        ),
        facts(ledger=[*worker(0, wrote=1), *worker(1, wrote=1), *worker(0, 1, world=1)],
              out=[*lines(0, 1), *lines(1, 1), *lines(0, round_=1)], faults=[LOSS]),
        facts(-9, out=lines(0, 1), faults=[fault("command SIGKILL", codes=(-9,))]),
    ],
)  # fmt: skip
def test_a_job_without_findings(fine):
    assert judge(fine) == []


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (facts(None), "has not ended"),
        (facts(left={7: ["worker.py"]}), "processes are left"),
        (facts(ledger=[], out=[]), "no worker has run"),
        (facts(ledger=[*worker(0), *worker(1, wrote=2)], out=[*lines(0), *lines(1, 2)]),
         "rank 1 of round 0 has not written its last line"),
        (facts(ledger=worker(0)), "rank 1 of round 0 has not written its last line"),
        (facts(ledger=[*worker(0), *worker(1), *worker(0, 1, wrote=1, world=1)]),
         "rank 0 of round 1 has not written"),
        (facts(out=[*lines(0), *lines(1, 2)]), "2 of 3 lines of .0, 1, 101. on node1 have arrived"),
        (facts(111, out=[*lines(0, 2), *lines(1)], faults=[LOSS]), "2 of 3 lines of .0, 0, 100."),
        (facts(111, out=[*lines(0), *lines(1, 2)], faults=[LOSS]), "no message says so"),
        (facts(out=[*lines(0), *lines(1), lines(1)[-1]]), "line 2 of .0, 1, 101. comes after 3"),
        (facts(out=[*lines(0), *reversed(lines(1))]), "line 2 of .0, 1, 101. comes after 0"),
        (facts(out=[*lines(0), *lines(1), "plaunch: done"]), "no worker has written"),
        (facts(143), "exit code 143 is not explained by no fault"),
        (facts(1, faults=[SIGTERM]), "exit code 1 is not explained by command SIGTERM"),
        (facts(111, faults=[fault(phase="all workers", codes=(111,))], restarts=1), "was left"),
        (facts(err='File "/x/plaunch/cli/run.py", line 3'), "the launcher has written a traceback"),
    ],
)  # fmt: skip
def test_wrong_ends_are_found(wrong, found):
    assert re.search(found, "\n".join(judge(wrong)))


def test_a_fault_that_was_not_injected_explains_nothing():
    late = Fault("command SIGTERM", "saving", 0.0, codes=(143,))
    assert "not explained" in judge(facts(143, faults=[late]))[0]
