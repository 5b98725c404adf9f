"""From how a launch ended to what is said of it; real launches are in e2e."""

from __future__ import annotations

import errno
import json

import pytest
from plaunch.cli import concluded
from plaunch.errors import ExitCode, UsageError
from plaunch.process import ChildFailedError, ProcessFailure

from helpers.faults import raising
from helpers.programs import run_python

# The modules of plaunch that a launch of an empty program imports: 148, and a few more in a launch
# that takes a second, for the log.
MOST_MODULES = 158


def test_an_error_without_a_text_is_reported(capsys):
    class Mute(Exception):
        def __str__(self):
            raise KeyError("text")

    assert concluded(raising(Mute())) == ExitCode.INTERNAL
    assert "internal error: Mute: <its text is not available: KeyError>" in capsys.readouterr().err


@pytest.mark.parametrize("debug", ["0", "1"])
def test_too_many_open_files_are_no_bug(monkeypatch, capsys, debug):
    def launch():
        try:
            raise OSError(errno.EMFILE, "Too many open files", "capacity.py")
        finally:
            raise KeyError("what was open")

    monkeypatch.setenv("PLAUNCH_DEBUG", debug)
    assert concluded(launch) == ExitCode.INTERNAL
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith(
        "plaunch: too many open files; raise the limit of open files (ulimit"
    )
    assert (len(said) > 1) == (debug == "1")


@pytest.mark.parametrize("debug", ["0", "1"])
def test_the_traceback_of_an_expected_error_is_for_debugging(monkeypatch, capsys, debug):
    monkeypatch.setenv("PLAUNCH_DEBUG", debug)
    assert concluded(raising(UsageError("no such file"))) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert ("Traceback" in said) == (debug == "1")
    assert "no such file" in said


def test_the_first_failure_is_handed_up(monkeypatch, tmp_path):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    failure = ProcessFailure(0, 4242, 17, "")
    assert concluded(raising(ChildFailedError("train.py", {0: failure}))) == 17
    assert "PID 4242 ended with exit code 17" in path.read_text()


def test_a_record_about_the_whole_launch_comes_behind_the_error():
    code = (
        "import logging, plaunch.cli.program as program\n"
        "program.set_up_logging()\n"
        "def launch():\n"
        "    logging.getLogger('plaunch').info('it took 3 s', extra={'is_last': True})\n"
        "    raise program.PlaunchError('it has failed')\n"
        "program.concluded(launch)\n"
        "program.STDERR.finish()\n"
    )
    lines = run_python("-c", code, check=True).stderr.splitlines()
    assert lines == ["plaunch: it has failed", "plaunch: it took 3 s"]


def test_messages_have_the_requested_format():
    done = run_python("-m", "plaunch", "--log-format=json", "--no-python", "false")
    assert done.returncode == 1
    levels = [json.loads(line)["level"] for line in done.stderr.splitlines()]
    assert levels[-2:] == ["ERROR", "INFO"]


@pytest.mark.parametrize(("workers", "is_set"), [(1, False), (2, True)])
def test_the_introduction_names_what_is_set_for_several_workers(monkeypatch, workers, is_set):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    done = run_python("-m", "plaunch", f"--nproc-per-node={workers}", "--no-python", "false")
    assert ("; sets OMP_NUM_THREADS=1\n" in done.stderr) == is_set


def test_an_empty_launch_imports_few_modules_of_plaunch():
    code = (
        "import sys; from plaunch.cli import main; main(['--no-python', 'true']);"
        "print(*sorted(name for name in sys.modules if name.startswith('plaunch')))"
    )
    found = run_python("-c", code, check=True).stdout.split()
    assert len(found) <= MOST_MODULES, "\n".join(found)
