"""stdout of the launcher; real launches are in e2e/test_evil_plugins.py."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from types import SimpleNamespace

import pytest
from plaunch.cli import program
from plaunch.cli.stdout import Stdout
from plaunch.plugin import hookimpl

from helpers.programs import run_python

BOUND = 60.0  # seconds


class Talking:
    def __init__(self):
        print("talk")

    @hookimpl
    def plaunch_worker_env(self):
        print("talk")


@pytest.mark.parametrize("argv", [["--dry-run=json"], ["--list-plugins"]], ids=repr)
def test_only_the_answer_of_a_command_is_on_stdout(argv, capsys) -> None:
    stdout = sys.stdout
    assert program.main([*argv, "--no-python", "true"], plugins=[Talking]) == 0
    out, err = capsys.readouterr()
    assert out
    assert "talk" not in out
    assert "talk\n" in err
    assert sys.stdout is stdout


@pytest.mark.parametrize(
    ("is_launch", "out", "err"),
    [(True, "theirs\nours\nmine\n", ""), (False, "ours\nmine\n", "theirs\n")],
)
def test_a_program_that_launches_keeps_its_stdout_and_another_does_not(
    capsys, is_launch, out, err
) -> None:
    stdout = Stdout()
    with stdout.reserved(is_launch=is_launch):
        print("theirs")
        stdout.write("ours\n")
    print("mine")
    assert capsys.readouterr() == (out, err)


def test_programs_that_the_launcher_runs_do_not_write_to_it():
    code = (
        "import os, subprocess\n"
        "os.environ['PLAUNCH_LAUNCHER'] = str(os.getpid())\n"
        "from plaunch.cli.stdout import Stdout\n"
        "stdout = Stdout()\n"
        "with stdout.reserved(is_launch=False):\n"
        "    subprocess.run(['echo', 'theirs'], check=True)\n"
        "    stdout.write('ours\\n')\n"
        "    stdout.hand_over()\n"
        "    subprocess.run(['echo', 'of workers'], check=True)\n"
    )
    done = run_python("-c", code, check=True)
    assert (done.stdout, done.stderr) == ("ours\nof workers\n", "theirs\n")


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_two_calls_at_once_both_write_to_it(capsys, first_to_end) -> None:
    stdout, before = Stdout(), sys.stdout
    calls = [stdout.reserved(is_launch=False) for _ in range(2)]
    for number, call in enumerate(calls):
        call.__enter__()
        stdout.write(f"ours {number}\n")
        print(f"theirs {number}")
    calls.pop(first_to_end).__exit__(None, None, None)
    stdout.write("ours still\n")
    print("theirs still")
    calls.pop().__exit__(None, None, None)
    assert sys.stdout is before
    print("mine")
    out, err = capsys.readouterr()
    assert out == "ours 0\nours 1\nours still\nmine\n"
    assert err == "theirs 0\ntheirs 1\ntheirs still\n"


def test_stdout_that_is_closed() -> None:
    with contextlib.redirect_stdout(None), Stdout().reserved(is_launch=False):
        assert sys.stdout is None


def test_a_closed_pipe_is_ignored() -> None:
    attempts = []

    def write(text):
        attempts.append(text)
        raise BrokenPipeError

    with contextlib.redirect_stdout(SimpleNamespace(write=write)):
        Stdout().write("text")
    assert attempts == ["text"]


def test_a_stdout_on_a_full_disk_is_no_fault_of_plaunch() -> None:
    with open("/dev/full", "w") as full:
        pipes = {"capture_output": False, "stdout": full, "stderr": subprocess.PIPE}
        done = run_python("-m", "plaunch", "--print-completion=bash", **pipes)
    assert done.returncode == 1
    assert done.stderr == (
        "plaunch: stdout, where this output was to go, cannot be written: No space left on "
        "device; the output is incomplete\n"
    )
