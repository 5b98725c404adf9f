"""The example extension: its option, its restarts and its doctor check, as users run them."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.waiting import wait_for_files

PACKAGE = Path(__file__).parents[2] / "examples/plaunch-example-extension"
LINES = 120  # of Python and of pyproject.toml, at most
BOUND = 120.0  # seconds; far more than any step here takes on a busy machine

# Creates a file in each round, and keeps running in the first one.
WORKER = """\
import os, pathlib, sys, time
names = ("PLAUNCH_ROUND", "TORCHELASTIC_RESTART_COUNT", "RANK")
round_, attempt, rank = (os.environ[name] for name in names)
(pathlib.Path(sys.argv[1]) / f"{round_}.{attempt}.{rank}").touch()
while round_ == "0":
    time.sleep(0.05)
"""


def test_it_is_short():
    files = [*PACKAGE.glob("src/*/*.py"), PACKAGE / "pyproject.toml"]
    assert sum(len(file.read_text().splitlines()) for file in files) < LINES


def test_the_tests_of_the_package_pass(run_tests_of_package):
    run_tests_of_package(BOUND)


def test_its_option_works_like_the_cores(installed, tmp_path):
    assert "--reload-file FILE" in installed.run("--help").stdout
    script = installed.write("train.py", "")
    (tmp_path / "plaunch.toml").write_text("reload-file = 'here'\n")
    done = installed.run("--dry-run=json", script)
    setting = json.loads(done.stdout)["settings"]["reload_file"]
    assert setting == {"value": "here", "source": "plaunch.toml"}
    listed = installed.run("--list-plugins").stdout
    rows = [line.split()[:3] for line in listed.splitlines()]
    assert ["options+hooks", "reload", "plaunch-example-extension"] in rows
    unknown = installed.run("--reload-fil=x", script)
    assert unknown.returncode == 2
    assert "did you mean --reload-file?" in unknown.stderr


def test_a_file_that_appears_restarts_all_workers(installed, tmp_path):
    script = installed.write("train.py", WORKER)
    path = tmp_path / "reload"
    words = ["--nproc-per-node=2", f"--reload-file={path}", script, str(tmp_path)]
    with installed.start(*words, LOGLEVEL="INFO") as process:
        wait_for_files(tmp_path / "0.0.0", tmp_path / "0.0.1")
        path.touch()
        _, stderr = process.communicate(timeout=BOUND)
    assert process.returncode == 0, stderr
    assert sorted(found.name for found in tmp_path.glob("*.*.[01]")) == [
        "0.0.0",
        "0.0.1",
        "1.0.0",
        "1.0.1",
    ]
    assert not path.exists()
    assert f"{path} has appeared" in stderr
    assert "plaunch-example-extension 0.1.0" in stderr  # the requesting plugin


def test_its_check_runs_in_the_doctor(installed, tmp_path):
    done = installed.run("--doctor", f"--reload-file={tmp_path}/none/reload")
    assert f"nothing can be removed from {tmp_path}/none" in done.stdout
    assert done.returncode == 1
    assert "reload file" not in installed.run("--doctor").stdout
