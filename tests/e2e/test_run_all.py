"""All benchmarks in one run, and its page."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from plaunch_rendezvous_etcd.testing import EtcdUnavailableError

from helpers.faults import raising
from helpers.programs import run_python

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
MODULES = ("run_all", "results_page", "machine", "measuring")
STREAMS = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
# A fake benchmark with one goal; its options select whether the goal is met, and its exit.
SCRIPT = """\
import json, os, sys, time
word, path = sys.argv[1], sys.argv[-1].removeprefix("--json=")
print("never shown")
if word == "fails":
    print("what it says\\n", file=sys.stderr)
    sys.exit(3)
if word == "dies":
    os.kill(os.getpid(), 9)
if word == "hangs":
    time.sleep(600)
samples = {"bare": [2.0], "plaunch": [3.0, 4.0, 8.0], "torchrun": [80.0]}
result = {"measurements": {"a | b": {"unit": "ms", "samples": samples}}}
result |= {"goals": {"at most 5": word != "misses"}, "values": {"at most 5": 4.0}}
with open(path, "w") as file:
    file.write("{" if word == "torn" else json.dumps(result))
"""


@pytest.fixture
def run_all(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module("run_all")
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def script(run_all, monkeypatch, tmp_path):
    """Add a benchmark to the real ones; return its titles."""
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setattr(run_all, "FOLDER", str(tmp_path))

    def script(*words):
        benchmarks = [
            run_all.Benchmark(word.title(), f"It {word}.", "script.py", (word,)) for word in words
        ]
        monkeypatch.setattr(run_all, "BENCHMARKS", benchmarks)
        return benchmarks

    return script


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("works", ""),
        ("fails", "what it says"),
        ("dies", "it ended with exit code -9"),
        ("torn", "it left no JSON object: Expecting"),
    ],
)
def test_a_benchmark_is_measured_or_has_a_problem(run_all, script, word, problem):
    (benchmark,) = script(word)
    outcome = run_all.measure(benchmark, {}, is_quick=False)
    assert outcome.problem.startswith(problem)
    assert bool(outcome.problem) == bool(problem) != bool(outcome.result)
    assert outcome.command == f"python benchmarks/script.py {word}"


def test_a_hanging_benchmark_is_abandoned(run_all, script):
    (benchmark,) = script("hangs")
    outcome = run_all.measure(benchmark, {}, is_quick=False, limit=0.1)
    assert outcome.problem == "it did not end within 0.1 s"


@pytest.mark.parametrize(("handler", "code"), [("default_int_handler", 1), ("SIG_IGN", -9)])
def test_an_interrupted_benchmark_cleans_up(run_all, monkeypatch, handler, code):
    body = (
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGINT, signal.{handler})\n"
        "try:\n    print('there', flush=True)\n    time.sleep(600)\n"
        "finally:\n    print('cleaned')\n    sys.exit(1)\n"
    )
    monkeypatch.setattr(run_all, "END_LIMIT", 60.0 if code == 1 else 0.1)
    argv = [sys.executable, "-c", body]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b"there\n"
        run_all._end(process)
        assert process.returncode == code
        assert process.stdout.read() == (b"cleaned\n" if code == 1 else b"")


def test_missing_requirements_are_reported(run_all, script):
    (works,) = script("works")
    missing = {"etcd": "there is no etcd", "torch": "there is no torch"}
    lacks = run_all.Benchmark("T", "", works.script, needs=("torch", "etcd"))
    assert run_all.measure(lacks, missing, is_quick=False).problem == (
        "there is no torch; there is no etcd"
    )
    does_without = run_all.Benchmark(
        "T", "", works.script, ("works",), if_there={"etcd": "--more"}, if_missing={"torch": "--no"}
    )
    outcome = run_all.measure(does_without, missing, is_quick=False)
    assert (outcome.problem, outcome.notes) == ("", ["there is no etcd", "there is no torch"])
    assert outcome.command.endswith("script.py works --no")
    outcome = run_all.measure(does_without, {}, is_quick=False)
    assert (outcome.problem, outcome.notes) == ("", [])
    assert outcome.command.endswith("script.py works --more")


def test_requirements_may_be_missing(run_all, monkeypatch):
    monkeypatch.setattr(run_all, "find_spec", {}.get)
    monkeypatch.setattr(run_all, "find_etcd", lambda: "/usr/bin/etcd")
    monkeypatch.setattr(run_all.shutil, "which", lambda name, path: None)
    missing = {
        "torch": "torch is not installed",
        "sshd": "sshd is not installed",
        "otel": "opentelemetry is not installed",
        "etcd": "grpcio is not installed",
    }
    assert run_all.find_missing() == missing
    monkeypatch.setattr(run_all, "find_etcd", raising(EtcdUnavailableError("no server")))
    assert run_all.find_missing() == missing | {"etcd": "no server"}
    monkeypatch.setattr(run_all, "find_spec", dict.fromkeys(["torch", "opentelemetry"], 1).get)
    monkeypatch.setattr(run_all.shutil, "which", lambda name, path: "/usr/sbin/sshd")
    assert run_all.find_missing() == {"etcd": "no server"}


def test_one_that_fails_does_not_stop_the_others(run_all, script, tmp_path, capsys):
    script("works", "fails", "misses")
    page, report = tmp_path / "page.md", tmp_path / "all.json"
    assert run_all.main([f"--output={page}", f"--json={report}"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line.partition(" ... ")[0] for line in printed.err.splitlines()] == [
        "Works",
        "Fails",
        "Misses",
    ]
    assert "Fails ... not measured: what it says\n" in printed.err
    assert printed.err.endswith(" s, 0 of 1 goals met\n")
    text = page.read_text()
    assert "**Not measured**: what it says\n" in text
    assert "1 of 2 are met.\nThose of Fails were not measured.\n" in text
    assert "| Works | at most 5 | 4 | met |\n" in text
    assert "| Misses | at most 5 | 4 | **missed** |\n" in text
    assert "|  | bare | plaunch | torchrun | plaunch : bare | torchrun : plaunch | range |" in text
    row = "| a \\| b | 2.0 ms | 4.0 ms | 80.0 ms | **2.0** | **20.0** | 3.0 to 8.0 |\n"
    assert text.count(row) == 2
    content = json.loads(report.read_text())
    assert [one["problem"] for one in content["benchmarks"]] == ["", "what it says", ""]
    assert content["versions"]["Python"] in text
    assert content["machine"]["processor"] in text


@pytest.mark.parametrize(("word", "code"), [("works", 0), ("misses", 1), ("fails", 1)])
def test_check_requires_every_goal(run_all, script, word, code, capsys):
    script(word)
    assert run_all.main(["--only", word, "--check"]) == code
    assert capsys.readouterr().out.startswith("# Results of the benchmarks\n")


def test_only_a_whole_run_replaces_the_page(run_all, tmp_path):
    page = Path(run_all.parse([])[0].output)
    assert page == BENCHMARKS.parent / "docs/benchmarks.md"
    assert run_all.parse(["--quick"])[0].output is None
    assert run_all.parse(["--only=start"])[0].output is None
    assert run_all.parse(["--quick", "--output=x"])[0].output == "x"


def test_only_chooses_by_title(run_all, capsys):
    _, chosen = run_all.parse(["--only=ETCD", "--only=start"])
    over_etcd = ["Rendezvous, etcd", "Membership, etcd"]
    assert [one.title for one in chosen] == ["Start", *over_etcd, "Restarts"]
    with pytest.raises(SystemExit, match="2"):
        run_all.parse(["--only=nothing"])
    assert "'Membership, etcd'" in capsys.readouterr().err


def test_rows_may_compare_other_things_than_launchers(run_all):
    page = importlib.import_module("results_page")
    samples = {"null": [1.0], "jsonl": [2.0]}
    result = {"measurements": {"row": {"unit": "s", "samples": samples}}}
    assert list(page._measurements(result)) == [
        "|  | jsonl | null | range |\n| --- | --- | --- | --- |\n| row | 2.0 s | 1.0 s |  |\n"
    ]


def test_rounds_are_shown_beside_those_of_torch(run_all):
    page = importlib.import_module("results_page")
    one = dict.fromkeys(page.ROUND_COLUMNS, 1) | {"nodes": 8, "seconds": 0.25}
    lines = "".join(page._rounds({"rounds": [one], "peer": one | {"seconds": 1.0}}))
    assert "| plaunch | 8 | 0.25 | 1 | 1 | 1 | 1 | 1 | 1 |\n| torch | 8 | 1 |" in lines
    assert lines.endswith("\ntorch : plaunch, 8 nodes: **4.0**\n")
    lines = "".join(page._rounds({"rounds": [one], "peer": {"problem": "no client"}}))
    assert lines.endswith("\ntorch's own was not measured: no client\n")


def test_the_commit_may_be_unknown(run_all, tmp_path):
    machine = importlib.import_module("machine")
    assert machine._package("no-such-package") == "none"
    assert machine._commit(str(tmp_path)) == "unknown"
    assert machine._after_colon("/proc/cpuinfo", "no such key") == ""


def test_sigterm_ends_the_benchmark_that_runs(tmp_path):
    (tmp_path / "run_all.py").symlink_to(BENCHMARKS / "run_all.py")
    (tmp_path / "startup.py").write_text(
        "import os, time\n"
        "with open(os.environ['SAID'], 'w') as said:\n"
        "    try:\n        print('there', file=said, flush=True)\n        time.sleep(30)\n"
        "    finally:\n        print('cleaned', file=said)\n"
    )
    fifo = tmp_path / "said"
    os.mkfifo(fifo)
    argv = [sys.executable, tmp_path / "run_all.py", "--quick"]
    environ = {**os.environ, "SAID": str(fifo)}
    with (
        subprocess.Popen(argv, env=environ, text=True, **STREAMS) as process,
        fifo.open() as said,
    ):
        assert said.readline() == "there\n"
        process.send_signal(signal.SIGTERM)
        assert said.read() == "cleaned\n"
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert printed == ""
    assert errors.startswith("Start ...")


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("etcd_server")
def test_a_quick_run_measures_everything(run_all, plaunch):
    pytest.importorskip("torch.distributed")
    pytest.importorskip("opentelemetry")
    page, report = plaunch.folder / "page.md", plaunch.folder / "all.json"
    done = run_python(
        BENCHMARKS / "run_all.py",
        "--quick",
        f"--output={page}",
        f"--json={report}",
        env={**plaunch.environ, "TMPDIR": str(plaunch.folder)},
        timeout=390,
    )
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "**This was a quick run**" in text
    for outcome in json.loads(report.read_text())["benchmarks"]:
        assert not outcome["problem"], outcome
        assert f"\n## {outcome['title']}\n" in text
        assert f"    {outcome['command']}    # " in text
        for row in outcome["result"].get("measurements", {}):
            assert f"| {row} |" in text
        assert all(f"| {goal} |" in text for goal in outcome["result"]["goals"])
    assert done.stdout == ""
