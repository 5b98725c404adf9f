"""Completion of plaunchctl's command line, in the shells that are installed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest
from plaunch_control import completion
from plaunch_control.cli import DONE, REFUSED, create_parser, main

from helpers.machine_parts import need

SHELLS = ("bash", "zsh", "tcsh", "fish")


def run_program(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


def complete_in_bash(script, *words):
    """The completions that bash offers for the last word after `plaunchctl`."""
    all_words = ["plaunchctl", *words]
    program = f"""
        source {shlex.quote(str(script))}
        COMP_WORDS=({shlex.join(all_words)})
        COMP_CWORD={len(words)}
        complete=$(complete -p plaunchctl)
        complete=${{complete##*-F }}
        ${{complete%% *}} plaunchctl {shlex.join(all_words[-1:])} {shlex.join(all_words[-2:-1])}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = run_program("bash", "--norc", "-c", program)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "plaunchctl.bash"
    path.write_text(completion.completion_script(create_parser(), "bash"))
    return path


@pytest.mark.needs("bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sta"], ["stacks", "status"]),
        (["logs", "--f"], ["--follow"]),
        (["stop", "--all"], ["--all-nodes"]),
        (["signal", "SIGUSR"], ["SIGUSR1", "SIGUSR2"]),
        (["--print-completion", "f"], ["fish"]),
        (["status", "al"], []),  # nothing runs
    ],
)
def test_bash_completes_commands_options_and_signals(
    bash_script, words, expected, tmp_path, monkeypatch
):
    monkeypatch.setenv("PLAUNCH_RUNTIME_DIR", str(tmp_path))
    assert sorted(complete_in_bash(bash_script, *words)) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts(shell, capsys):
    with pytest.raises(SystemExit) as exited:
        main(["--print-completion", shell])
    out, err = capsys.readouterr()
    assert (exited.value.code, err) == (DONE, "")
    assert all(word in out for word in ("restart", "leave", "all-nodes", "SIGUSR1"))


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_can_run_its_script(shell, capsys):
    need(shell)
    with pytest.raises(SystemExit):
        main(["--print-completion", shell])
    assert run_program(shell, "-n", "-c", capsys.readouterr().out).stderr == ""


def test_without_shtab(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as exited:
        main(["--print-completion", "bash"])
    assert exited.value.code == REFUSED
    assert "pip install 'plaunch[completion]'" in capsys.readouterr().err


def test_a_version_of_shtab_that_lacks_the_shell(monkeypatch, capsys):
    monkeypatch.setattr("shtab.SUPPORTED_SHELLS", ["bash", "zsh"])
    with pytest.raises(SystemExit):
        main(["--print-completion", "fish"])
    assert "only for bash, zsh" in capsys.readouterr().err


def test_no_module_of_the_current_folder_is_imported(tmp_path, monkeypatch):
    (tmp_path / "signal.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    run_program(sys.executable, os.path.abspath(completion.__file__))
