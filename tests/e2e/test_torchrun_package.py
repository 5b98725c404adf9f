"""`packages/torchrun-plaunch`: a program `torchrun` that is plaunch's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import plaunch

PACKAGE = Path(__file__).parents[2] / "packages/torchrun-plaunch"
BOUND = 120.0  # seconds


def test_its_torchrun_is_plaunch(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        (source / name).write_text((PACKAGE / name).read_text())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    target = tmp_path / "target"
    subprocess.run(
        [*pip, "--no-build-isolation", f"--prefix={target}", source], check=True, timeout=BOUND
    )
    shown = subprocess.run(
        [target / "bin" / "torchrun", "--version"],
        check=True, capture_output=True, text=True, timeout=BOUND,
    )  # fmt: skip
    assert f"plaunch {plaunch.__version__}" in shown.stdout
    script = tmp_path / "train.py"
    script.write_text("import os; print('rank', os.environ['RANK'])")
    done = subprocess.run(
        [target / "bin" / "torchrun", "--nproc-per-node=1", script],
        check=True, capture_output=True, text=True, timeout=BOUND,
    )  # fmt: skip
    assert done.stdout == "rank 0\n"


def test_it_requires_plaunch_and_nothing_else():
    assert 'dependencies = ["plaunch"]' in (PACKAGE / "pyproject.toml").read_text()
