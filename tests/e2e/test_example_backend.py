"""The example rendezvous backend: installed with pip, selected by name, and conforming."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from helpers.programs import run_all, run_python

PACKAGE = Path(__file__).parents[2] / "examples/plaunch-example-backend"
SUITE_TIMEOUT = 240.0  # seconds; it takes less than one minute on an idle machine

SHOW = """\
import os, sys
names = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
sys.stdout.write("rank {} of {}, attempt {}\\n".format(*(os.environ[name] for name in names)))
"""
FAIL_ONCE = (
    SHOW
    + """\
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(17)
import time
while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(0.1)
"""
)
FAIL = """\
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit(17)
while True:
    time.sleep(0.1)
"""
WAIT_FOR_TWO = (
    SHOW
    + """\
sys.stdout.flush()
import time
while os.environ["WORLD_SIZE"] == "1":
    time.sleep(0.1)
"""
)


@pytest.fixture
def argv(installed):
    """Options of each launcher of a job of one or two nodes that meet through a file."""
    return [
        "--rdzv-backend=sqlite",
        f"--rdzv-endpoint={installed.folder / 'store.db'}",
        "--rdzv-id=job",
        "--rdzv-conf=last_call_timeout=0",
    ]


def run_two(installed, *argv):
    """Run two launchers at once."""
    return run_all([["-m", "plaunch", *argv]] * 2, cwd=installed.folder, env=installed.environ)


def test_two_launchers_restart_together(installed, argv):
    script = installed.write("fail_once.py", FAIL_ONCE)
    results = run_two(installed, *argv, "--nnodes=2", "--max-restarts=1", script)
    assert [done.returncode for done in results] == [0, 0], results
    lines = sorted(line for done in results for line in done.stdout.splitlines())
    assert lines == [
        "rank 0 of 2, attempt 0",
        "rank 0 of 2, attempt 1",
        "rank 1 of 2, attempt 0",
        "rank 1 of 2, attempt 1",
    ]


def test_two_launchers_end_with_one_cause(installed, argv):
    results = run_two(installed, *argv, "--nnodes=2", installed.write("fail.py", FAIL))
    for done in results:
        assert done.returncode == 17
        assert "plaunch: rank 1 on " in done.stderr


def test_a_late_launcher_is_admitted(installed, argv):
    script = installed.write("wait.py", WAIT_FOR_TWO)
    with installed.start(*argv, "--nnodes=1:2", script) as early:
        assert early.stdout.readline() == "rank 0 of 1, attempt 0\n"
        late = installed.run(*argv, "--nnodes=1:2", script)
        out, err = early.communicate(timeout=60)
    assert (early.returncode, late.returncode) == (0, 0), err + late.stderr
    assert (out, late.stdout) == ("rank 0 of 2, attempt 0\n", "rank 1 of 2, attempt 0\n")


def test_a_launcher_that_is_stopped_leaves(installed, argv):
    script = installed.write("wait.py", WAIT_FOR_TWO.replace('"1"', '"2"'))
    # Long enough for both to join; the survivor does not wait for it.
    words = [*argv[:-1], "--rdzv-conf=last_call_timeout=30", "--nnodes=1:2", script]
    with installed.start(*words) as one:
        with installed.start(*words) as other:
            assert re.match(r"rank . of 2", other.stdout.readline())
            other.send_signal(signal.SIGTERM)
            other.communicate(timeout=60)
        out, err = one.communicate(timeout=60)
    assert (one.returncode, other.returncode) == (0, 128 + signal.SIGTERM), err
    assert out.splitlines()[-1] == "rank 0 of 1, attempt 0"


def test_torch_is_not_imported(installed, argv):
    words = ["-X", "importtime", "-m", "plaunch", *argv, "--no-python", "true"]
    done = run_python(*words, cwd=installed.folder, env=installed.environ, check=True)
    assert "plaunch_example_backend.store" in done.stderr
    assert not re.search(r"\| +torch\b", done.stderr)


@pytest.mark.slow
@pytest.mark.timeout(SUITE_TIMEOUT + 30)
def test_the_tests_of_the_package_pass(run_tests_of_package):
    told = run_tests_of_package(SUITE_TIMEOUT, at_once=4)  # most of them wait
    assert int(re.search(r"(\d+) passed", told)[1]) > 80
    assert "skipped" not in told


def test_it_imports_public_names_only(rooms_imported):
    assert rooms_imported == {"errors", "rendezvous"}
