"""What each worker runs."""

from __future__ import annotations

import sys

import pytest
from plaunch.cli.command import run_script_path, worker_command
from plaunch.cli.parser import parse
from plaunch.errors import UsageError

from helpers.programs import run_python

SCRIPT = """\
import pathlib, sys
pathlib.Path(sys.argv[1]).write_text(f"{__name__} {sys.argv[0]} {sys.path[0]}")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def command(*argv):
    return worker_command(parse(argv, {}))


@pytest.fixture(autouse=True)
def _default_interpreter(monkeypatch):
    monkeypatch.delenv("PYTHON_EXEC", raising=False)


def test_what_is_run_is_unbuffered_under_this_interpreter_or_another(monkeypatch, script):
    assert command(script, "--lr", "1") == (sys.executable, ["-u", script, "--lr", "1"])
    assert command("-m", "pkg.train", "-x") == (sys.executable, ["-u", "-m", "pkg.train", "-x"])
    assert command("--no-python", "sh", "-c", "true") == ("sh", ["-c", "true"])
    monkeypatch.setenv("PYTHON_EXEC", "/bin/sh")
    assert command(script) == ("/bin/sh", ["-u", script])


def test_run_path(script, tmp_path):
    entrypoint, args = command("--run-path", script, str(tmp_path / "out"))
    assert entrypoint is run_script_path
    code = "import sys; from plaunch.cli import run_script_path; run_script_path(*sys.argv[1:])"
    run_python("-c", code, *args, check=True)
    assert (tmp_path / "out").read_text() == f"__main__ {script} {tmp_path}"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "there is no script to run"),
        ([""], "the name of the script is empty .''.; perhaps a variable"),
        (["  "], "the name of the script is empty .'  '."),
        (["-m", ""], "the name of the script is empty"),
        (["--no-python", " "], "the name of the script is empty"),
        (["nowhere.py"], "the script 'nowhere.py' does not exist"),
        (["--run-path", "nowhere.py"], "the script 'nowhere.py' does not exist"),
        (["--no-python", "-m", "x"], "--no-python and --module contradict each other for 'x'"),
        (["--run-path", "-m", "x"], "--run-path and --module contradict"),
        (["--no-python", "no-such-program"], "'no-such-program', which is not an executable"),
    ],
)
def test_mistakes_are_named(argv, message):
    with pytest.raises(UsageError, match=message):
        command(*argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["trian.py"], "'trian.py' does not exist; did you mean 'train.py'?"),
        (["./sub/trian.py"], "does not exist; did you mean './sub/train.py'?"),
        (["train"], "'train' does not exist; did you mean 'train.py'?"),
        (["evaluate"], "'evaluate' does not exist (current folder: "),
        (["evaluate"], "; give its path, or -m for a module, or --no-python for a program"),
        (["python3", "train.py"], "plaunch starts python itself: leave out this word"),
        (["train.py --lr 3"], "leave out the quotes around 'train.py --lr 3'"),
        (["sub"], "'sub' is a folder without a __main__.py"),
        (["--nproc-per-node", "train.py"], "'train.py' is the value of --nproc-per-node"),
        (["-r", "3", "-t", "train.py"], "'train.py' is the value of --tee"),
        (["--no-python", "./run.sh"], "a file that may not be executed; chmod +x ./run.sh"),
        (
            ["--no-python", "go.sh"],
            "not found on PATH; for the file in the current folder write ./",
        ),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("train.py", "sub/train.py", "run.sh", "go.sh"):
        (tmp_path / name).write_text("")
    (tmp_path / "go.sh").chmod(0o755)
    with pytest.raises(UsageError) as caught:
        command(*argv)
    assert message in str(caught.value)


@pytest.mark.parametrize("options", [["--run-path"], ["--run-path", "--no-python"]])
def test_no_program_and_no_module_are_suggested_with_run_path(options):
    with pytest.raises(UsageError) as caught:
        command(*options, "nowhere.py")
    assert str(caught.value).endswith("; give its path")


def test_a_script_that_cannot_be_reached_is_not_called_missing(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match=r"loop/x\.py' cannot be read: Too many levels"):
        command(str(tmp_path / "loop" / "x.py"))


UNREADABLE = """
import os, sys
from plaunch.cli import parse, worker_command
args = parse(sys.argv[1:])
if os.geteuid() == 0:
    os.setuid(65534)  # root may search all folders
worker_command(args)
"""


def test_a_folder_that_may_not_be_searched_is_named(tmp_path):
    (tmp_path / "x.py").touch()
    tmp_path.chmod(0)
    done = run_python("-c", UNREADABLE, str(tmp_path / "x.py"))
    tmp_path.chmod(0o700)
    assert "cannot be read: Permission denied; check the permissions of its fol" in done.stderr


def test_a_folder_that_python_runs_is_a_script(tmp_path):
    (tmp_path / "__main__.py").write_text("")
    assert command(str(tmp_path)) == (sys.executable, ["-u", str(tmp_path)])


def test_an_interpreter_that_does_not_exist(monkeypatch, script):
    monkeypatch.setenv("PYTHON_EXEC", "/no/python")
    with pytest.raises(UsageError, match="PYTHON_EXEC names '/no/python'"):
        command(script)
