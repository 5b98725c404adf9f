"""How launches stop: requests, leftovers and messages."""

from __future__ import annotations

import re
import signal
import sys

import pytest
from plaunch.process.proc import read_state

from helpers.processes import is_gone, parent_of
from helpers.terminals import Terminal
from helpers.waiting import wait_for_files, wait_until

TIMEOUT = 60.0  # seconds; a hang is a failure, however slow the machine

# Rank 0 fails when the other rank, which ignores SIGTERM, has started.
FAILING = """\
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path("asked").touch())
if os.environ["RANK"] == "0":
    while not os.path.exists("ready"): time.sleep(0.01)
    sys.exit(7)
pathlib.Path("ready").write_text(str(os.getpid()))
while True: time.sleep(60)
"""


def test_ctrl_c_during_a_failure_skips_the_grace_and_the_failure_stays_the_cause(plaunch, tmp_path):
    """Three of them did nothing for ten seconds once, then the code was 130, without a report."""
    script = plaunch.write("failing.py", FAILING)
    error_file = tmp_path / "error.json"
    with plaunch.start(
        "--nproc-per-node=2",
        "--shutdown-timeout=600",
        script,
        TORCHELASTIC_ERROR_FILE=str(error_file),
    ) as launcher:
        wait_for_files(tmp_path / "asked")
        launcher.send_signal(signal.SIGINT)
        _, err = launcher.communicate(timeout=TIMEOUT)
    assert launcher.returncode == 7
    assert re.search("^plaunch: rank 0 on .* failed after .*: exit code 7$", err, re.M)
    assert "exit code 7" in error_file.read_text()
    assert is_gone(int((tmp_path / "ready").read_text()))


SAVING = """\
import os, pathlib, signal, sys, time
def save(*_):
    pathlib.Path("asked").touch()
    while not os.path.exists("slow"): time.sleep(0.01)
    pathlib.Path("saved").touch()
    sys.exit(0)
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), save)
pathlib.Path("ready.part").write_text(str(os.getpid()))
pathlib.Path("ready.part").rename("ready")
while True: time.sleep(60)
"""
KEYS = {"Ctrl-C": (b"\x03", signal.SIGINT), "Ctrl-\\": (b"\x1c", signal.SIGQUIT)}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("times", [1, 2])
def test_keys_of_a_terminal(plaunch, tmp_path, key, times):
    """The first key stops the workers, which are not in its group; the second kills them."""
    code, signum = KEYS[key]
    script = plaunch.write("saving.py", SAVING)
    words = ["-m", "plaunch", script, signum.name]
    with Terminal(*words, cwd=plaunch.folder, env=plaunch.environ) as terminal:
        wait_for_files(tmp_path / "ready")
        terminal.type(code)
        wait_for_files(tmp_path / "asked")
        if times == 1:
            (tmp_path / "slow").touch()
        else:
            worker = int((tmp_path / "ready").read_text())
            wait_until(lambda: is_gone(worker) or terminal.type(code), "the worker is gone")
        assert terminal.process.wait(TIMEOUT) == 128 + signum
    assert (tmp_path / "saved").exists() == (times == 1)
    assert is_gone(int((tmp_path / "ready").read_text()))


def test_signals_to_a_suspended_launcher_are_one_request(plaunch, tmp_path):
    """The kernel delivers them together, and Python would handle SIGHUP (1) first."""
    script = plaunch.write("saving.py", SAVING)
    with plaunch.start(script, "SIGINT", "SIGHUP") as launcher:
        wait_for_files(tmp_path / "ready")
        launcher.send_signal(signal.SIGSTOP)
        wait_until(lambda: read_state(launcher.pid) == "T", "the launcher is suspended")
        launcher.send_signal(signal.SIGINT)
        launcher.send_signal(signal.SIGHUP)
        launcher.send_signal(signal.SIGCONT)
        wait_for_files(tmp_path / "asked")
        (tmp_path / "slow").touch()
        _, err = launcher.communicate(timeout=TIMEOUT)
    assert (launcher.returncode, (tmp_path / "saved").exists()) == (130, True), err


def test_an_unhandled_signal_ends_the_launch_with_a_message(plaunch, tmp_path):
    script = plaunch.write("saving.py", SAVING)
    with plaunch.start(script, "SIGTERM") as launcher:
        wait_for_files(tmp_path / "ready")
        (tmp_path / "slow").touch()
        launcher.send_signal(signal.SIGUSR1)
        _, err = launcher.communicate(timeout=TIMEOUT)
    assert launcher.returncode == 128 + signal.SIGUSR1
    assert "SIGUSR1 received, which no signal policy handles" in err
    assert "--signal-policy=notify" in err
    assert (tmp_path / "saved").exists()
    assert is_gone(int((tmp_path / "ready").read_text()))


@pytest.mark.parametrize(
    "shell", ["{python} {script} SIGTERM; true", "{python} {script} SIGTERM & wait"]
)
def test_a_program_that_a_shell_runs_has_the_grace(plaunch, tmp_path, shell):
    """The shell ends at once, or waits for it; neither passes a signal on."""
    script = plaunch.write("saving.py", SAVING)
    command = shell.format(python=sys.executable, script=script)
    with plaunch.start("--shutdown-timeout=600", "--no-python", "sh", "-c", command) as launcher:
        wait_for_files(tmp_path / "ready")
        launcher.send_signal(signal.SIGTERM)
        wait_for_files(tmp_path / "asked")
        pid = int((tmp_path / "ready").read_text())
        wait_until(lambda: is_gone(parent_of(pid)) or parent_of(pid) == launcher.pid, "no shell")
        (tmp_path / "slow").touch()
        _, err = launcher.communicate(timeout=TIMEOUT)
    assert (launcher.returncode, (tmp_path / "saved").exists()) == (143, True), err
    assert is_gone(pid)


# Each breaks something that the next start needs, then fails.
BREAKING = {
    "a cleaner removes the temporary folder": (
        "import os, shutil, sys\n"
        "path = os.environ['TORCHELASTIC_ERROR_FILE']\n"
        "for _ in range(3): path = os.path.dirname(path)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    shutil.rmtree(path)\n"
        "    sys.exit(7)\n"
        "assert os.path.isdir(path)\n"
    ),
    "the program is deleted": "import os, sys\nos.remove('program')\nsys.exit(7)\n",
    "the log folder becomes a file": (
        "import os, shutil, sys\nshutil.rmtree('logs')\nopen('logs', 'w').close()\nsys.exit(7)\n"
    ),
}


@pytest.mark.parametrize("how", BREAKING)
def test_a_restart_that_cannot_start_does_not_replace_the_failure(plaunch, tmp_path, how):
    script = plaunch.write("breaking.py", BREAKING[how])
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {script}\n")
    program.chmod(0o755)
    options = ["--log-dir=logs"] if "log folder" in how else []
    ended = plaunch.run("--max-restarts=1", *options, "--no-python", str(program))
    if "cleaner" in how:
        assert ended.returncode == 0, ended.stderr
        return
    assert ended.returncode == 7, ended.stderr
    assert "cannot be started again after a failure, so the job ends" in ended.stderr
    assert re.search("^plaunch: rank 0 on .* failed after .*: exit code 7$", ended.stderr, re.M)
