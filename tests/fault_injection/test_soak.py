"""Jobs of real agents, one seed after the other: `tools/soak`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fault_injection import engine_jobs, jobs
from plaunch_testing.simulation import FaultKind
from plaunch_testing.simulation.record import (
    AgentRecord,
    FaultRecord,
    OutputRecord,
    RoundRecord,
    RunRecord,
    StartedWorker,
)

from helpers.machine_parts import need

ROOT = Path(__file__).parents[2]
FIRST = 18520  # its first four jobs are short, and have many faults; each store is in one of them

sys.path.insert(0, str(ROOT / "tools/soaking"))
try:
    import soak
finally:
    del sys.path[0]


def run_tool(*options):
    command = [sys.executable, str(ROOT / "tools/soaking/soak.py"), *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=800)


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_wrong_with_jobs_of_some_seeds(tmp_path):
    need("etcd")
    pytest.importorskip("torch.distributed")
    result = tmp_path / "soak.json"
    done = run_tool(
        f"--seed={FIRST}", "--seeds=4", "--parallel=4", "--kinds=job,engine", f"--result={result}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(result.read_text())
    assert written["tool"] == "soak"
    assert written["findings"] == []
    figures = written["figures"]
    assert (figures["jobs"], figures["next seed"]) == (4, FIRST + 4)
    assert figures["launchers"] >= 9
    assert figures["lines of workers"] > 0


def test_an_unknown_kind_is_refused():
    done = run_tool("--seeds=1", "--kinds=job,jobs")
    assert done.returncode != 0
    assert "unknown kind 'jobs' in --kinds; choose from job, cables, engine" in done.stderr


# --- counting -------------------------------------------------------------------------------------

ROUNDS = [
    RoundRecord("job", number, number, [StartedWorker(0, 0, 1, "", "n0.0", "n0", 1.0)], {})
    for number in (0, 1)
]
RECORD = RunRecord(
    1, 1, 1, 1,
    faults=[
        FaultRecord(FaultKind.FAIL, "n0", 1.0),
        FaultRecord(FaultKind.PAUSE, "n0", 1.0, had_effect=False),
        FaultRecord(FaultKind.STORE_SLOW, "", 1.0),  # follows from another one
    ],
    rounds=ROUNDS,
    nodes=[AgentRecord("n0.0", "n0", 0.0, 1.0, 3), AgentRecord("n0.1", "n0", 0.0, 1.0, 3)],
    outputs=[OutputRecord("rank 0", 5, 3), OutputRecord("rank 1", 5, 3, may_be_cut=True)],
    leftovers=["process 7 (train.py)"],
)  # fmt: skip


class PlayedRuns:
    """Runs of jobs that have happened; `findings` are those of each seed."""

    def __init__(self, **findings):
        self._findings = findings
        self.kinds = []

    def __call__(self, *args, cables=False, preload="", report=None):
        seed = args[1]
        self.kinds.append(("cables" if cables else "job", preload, seed))
        findings = self._findings.get(f"seed{seed}", [])
        report(type("Job", (), {"record": RECORD}), findings)
        return "; ".join(findings)


@pytest.fixture
def played(monkeypatch):
    def play(**findings):
        runs = PlayedRuns(**findings)
        monkeypatch.setattr(jobs, "run", runs)
        monkeypatch.setattr(engine_jobs, "run", runs)
        return runs

    return play


def soak_of(seeds, kinds=("job",), first=0):
    found = soak.Soak(kinds, first)
    found.run_until(lambda seed: seed >= seeds)
    return found


def test_figures(played):
    played(seed1=["codes: exit codes differ: 3 of n0.0, 0 of n1.0"])
    figures = soak_of(3).figures()
    assert figures["jobs"] == 3
    assert (figures["launchers"], figures["rounds"], figures["restarts"]) == (6, 6, 3)
    assert figures["faults by kind"] == {"a worker fails": 3}
    assert figures["jobs with an exit code"] == {"3": 3}
    assert (figures["orphans"], figures["lost lines"], figures["wrong codes"]) == (3, 6, 1)
    assert (figures["findings"], figures["next seed"]) == (1, 3)


def test_kinds_take_turns(played):
    runs = played()
    soak_of(6, ("job", "cables", "preload"))
    assert runs.kinds[:3] == [("job", "", 0), ("cables", "", 1), ("job", "decimal", 2)]
    assert [seed for _, _, seed in runs.kinds] == [0, 1, 2, 3, 4, 5]


def test_findings_are_grouped_without_names_and_numbers(played):
    played(seed0=["time: not over: n1.0"], seed1=["time: not over: n2.1"])
    [(kind, found)] = soak_of(2).findings.items()
    assert kind == "time: not over:"
    assert found == ["time: not over: n1.0 (seed 0, job)", "time: not over: n2.1 (seed 1, job)"]


def test_an_error_of_a_job_is_a_finding(monkeypatch, capsys):
    def run(*args, **more):
        raise OSError("no more memory")

    monkeypatch.setattr(jobs, "run", run)
    found = soak_of(1)
    assert list(found.findings) == ["soak: OSError('no more memory')"]
    assert "no more memory" in capsys.readouterr().out


def test_a_soak_goes_on_where_another_one_has_ended(played, tmp_path):
    played(seed1=["time: not over: n1.0"])
    first = soak_of(2)
    first.save(tmp_path / "state")
    second = soak.Soak(("job",), 0)
    second.load(tmp_path / "state")
    second.run_until(lambda seed: seed >= 3)
    figures = second.figures()
    assert (figures["jobs"], figures["launchers"], figures["next seed"]) == (3, 6, 3)
    assert list(second.findings) == list(first.findings)
    assert second.elapsed >= second.seconds


def test_no_seed_is_run_twice_at_a_time(played):
    runs = played()
    both = soak.Soak(("job",), 0)
    threads = [
        threading.Thread(target=both.run_until, args=(lambda seed: seed >= 20,)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seed for _, _, seed in runs.kinds) == list(range(20))


def test_progress(played):
    played()
    assert "2 jobs, 4 launchers, 2 faults, 2 restarts, 0 kinds of findings; next seed 2" in (
        soak_of(2).progress()
    )
