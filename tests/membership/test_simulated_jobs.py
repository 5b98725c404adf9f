"""Whole jobs in virtual time: real agents and membership, simulated stores, hosts and workers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "simulation" / "simulate.py"


def simulate(*options):
    """Run the tool, in an interpreter whose clock and threads are those of the simulator."""
    command = [sys.executable, str(TOOL), "--cores=1", *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("store", ["job", "tcp", "etcd"])
def test_nothing_is_wrong_with_a_hundred_jobs(store):
    done = simulate("--seeds=100", f"--store={store}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100 jobs" in done.stdout
    assert " 0 with findings" in done.stdout


def test_what_was_found_once_is_not_found_again():
    done = simulate("--scripts=" + str(Path(__file__).with_name("found_by_simulation")))
    assert done.returncode == 0, done.stdout + done.stderr
    assert " scripts, 0 with findings" in done.stdout


def test_hypothesis_makes_scripts():
    done = simulate("--explore=20")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "nothing found in 20 scripts\n"


def test_nothing_is_wrong_with_commands_that_drive_agents():
    done = simulate("--commands", "--seeds=50")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("50 commands, 0 with findings; ")


def test_equal_seeds_have_equal_histories():
    first, second = (simulate("--seeds=2", "--first=7", "--history") for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert "starts ranks" in first.stdout
    assert first.stdout == second.stdout


def test_each_deliberate_bug_is_found_and_each_check_finds_one():
    done = simulate("--bugs")
    assert done.returncode == 0, f"find others with --bugs=search\n{done.stdout}{done.stderr}"
    checks = set(re.findall(r"(\w+) \(\d+\)", done.stdout.splitlines()[-1]))
    assert checks >= {"errors", "time", "ranks", "worlds", "rounds", "charges", "verdicts"}
    assert checks >= {"causes", "codes", "explained", "losses", "successes", "events", "leftovers"}
    assert checks >= {"records", "health"}
