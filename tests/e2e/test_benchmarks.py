"""The benchmarks do what they say; their figures are for people to read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
BOUND = 100.0  # seconds


@pytest.fixture
def benchmark(plaunch):
    def benchmark(name, *argv):
        return subprocess.run(
            [sys.executable, BENCHMARKS / name, *argv],
            cwd=plaunch.folder,
            env={**plaunch.environ, "TMPDIR": str(plaunch.folder)},
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )

    return benchmark


def test_supervision_measures_every_row(plaunch, benchmark):
    report = plaunch.folder / "report.json"
    argv = ["--no-torchrun", "--repeat=1", "--lines=1000", "--idle=1", f"--json={report}"]
    done = benchmark("supervision.py", *argv)
    assert done.returncode == 0, done.stderr
    measurements = json.loads(report.read_text())["measurements"]
    assert list(measurements) == [
        "death to exit, SIGKILL",
        "death to restarted, SIGKILL",
        "death to exit, sys.exit",
        "death to restarted, sys.exit",
        "SIGTERM to all gone",
        "tee, 2 x 1000 lines",
        "tee, launcher CPU",
        "idle CPU, 2 workers",
        "idle CPU, 64 workers",
    ]
    for name, measurement in measurements.items():
        (sample,) = measurement["samples"]["plaunch"]
        assert sample > 0, name
        assert name in done.stdout


@pytest.mark.parametrize("argv", [["--repeat=0"], ["--only=nothing"], ["--lines=x"]])
def test_supervision_refuses_what_it_cannot_measure(benchmark, argv):
    done = benchmark("supervision.py", *argv)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("pass", ""),
        ("assert False", "exit code 1"),
        ("import subprocess; subprocess.Popen(['sleep', '600'])", "processes left"),
        ("import tempfile; tempfile.mkdtemp()", "files left"),
    ],
)
def test_soak_finds_what_a_run_leaves(plaunch, benchmark, body, problem):
    test = plaunch.write("test_body.py", f"def test_it():\n    {body}\n")
    # Whatever warns of a forgotten process warns too early: what soak sees is the point.
    done = benchmark("soak.py", "--count=2", "--", test, "-Wignore")
    if problem:
        assert done.returncode == 1
        assert f"run 1 of 2: {problem}" in done.stdout
    else:
        assert done.returncode == 0, done.stdout
        assert "2 runs without a failure" in done.stdout
