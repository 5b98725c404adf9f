"""Launches of `plaunch -`: each worker runs the script from stdin, which is read once."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from helpers.processes import is_gone
from helpers.programs import run_python

SCRIPT = """\
import json, os, sys, time
names = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
facts = {name: os.environ[name] for name in names}
facts |= {"argv": sys.argv, "path": sys.path[0], "rest": sys.stdin.read(), "name": __name__}
print(json.dumps(facts) + "\\n", end="", flush=True)  # one write
open(f"said.{facts['RANK']}", "w").close()
if facts["RANK"] == "1" and facts["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not os.path.exists("said.0"):
        time.sleep(0.01)
    raise ValueError("no luck")
"""


@pytest.fixture
def launch(plaunch):
    """Run a launch whose stdin is a pipe with the script."""

    def launch(*argv, program=("-m", "plaunch"), script=SCRIPT):
        options = {"cwd": plaunch.folder, "env": plaunch.environ, "stdin": None, "input": script}
        return run_python(*program, *argv, **options)

    return launch


def facts_of(done):
    lines = [line[line.index("{") :] for line in done.stdout.splitlines()]
    found = sorted(map(json.loads, lines), key=lambda one: (one["RANK"], one["WORLD_SIZE"]))
    for one in found:
        assert one["argv"] == ["-", "--more", "x"]  # as python and torchrun have it
        assert (one["path"], one["rest"], one["name"]) == ("", "", "__main__")
    return [(one["RANK"], one["TORCHELASTIC_RESTART_COUNT"]) for one in found]


TWO_RANKS = [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]


@pytest.mark.parametrize(
    "options",
    [
        ["--standalone", "--nproc-per-node=2"],
        ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nproc-per-node=2"],
        ["--nproc-per-node=2", "--tee=3", "--redirects=3", "--log-dir=logs"],
        ["--nproc-per-node=2", "--preload=json"],
        ["--on=local:2"],
    ],
    ids=lambda options: options[0],
)
def test_all_ranks_run_it_in_every_attempt(launch, options):
    done = launch("--max-restarts=1", *options, "-", "--more", "x")
    assert done.returncode == 0, done.stderr
    assert sorted(facts_of(done)) == TWO_RANKS, done.stderr
    assert 'File "<stdin>", line 10' in done.stdout + done.stderr


def test_under_torchruns_name_it_is_the_same(launch):
    program = ("-c", "from plaunch_torchrun.run import main; main()")
    argv = ("--nproc-per-node=2", "--max-restarts=1", "-", "--more", "x")
    done = launch(*argv, program=program)
    assert done.returncode == 0, done.stderr
    assert sorted(facts_of(done)) == TWO_RANKS, done.stderr


def test_a_failure_is_that_of_the_script(launch):
    done = launch("--nproc-per-node=2", "-", "--more", "x")
    assert done.returncode == 1
    assert "ValueError: no luck (<stdin>:10)" in done.stderr
    assert "process: <stdin>, local rank 1" in done.stderr


@pytest.mark.parametrize("options", [[], ["--on=local:2"]], ids=["here", "on nodes"])
def test_an_empty_stdin_is_a_usage_error(launch, options):
    done = launch(*options, "-", script="")
    assert done.returncode == 2
    assert done.stderr.count("plaunch: error: the script is to come from stdin ('-')") == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--run-path"], "--run-path runs a file"),
        (["--no-python"], "--no-python runs '-'"),
        pytest.param(
            *(["--on=slurm:batch", "--nnodes=2"], "save it as a file"),
            marks=pytest.mark.needs("slurm"),
        ),
    ],
    ids=["--run-path", "--no-python", "--on=slurm:batch"],
)
def test_where_it_makes_no_sense_it_is_refused(launch, options, why):
    done = launch(*options, "-")
    assert done.returncode == 2
    assert why in done.stderr


@pytest.mark.parametrize("command", ["--dry-run", "--doctor"])
def test_other_commands_leave_it_unread(plaunch, command):
    """They would wait for it, although they do not need it."""
    with plaunch.popen(
        command, "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.wait(60) in (0, 1)  # the doctor may find something
        finally:
            process.kill()
        out = process.stdout.read().decode()
    assert "python -u -\n" in out if command == "--dry-run" else "script" not in out


def test_nothing_is_left_behind(plaunch):
    script = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with plaunch.popen("-", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(script.encode())
        process.stdin.close()
        worker = int(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert is_gone(worker)
    assert [*plaunch.folder.iterdir()] == []
