"""Completion: the scripts are run by the shells that are installed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys

import pytest
from plaunch.cli.completion import completion_script, installed_names
from plaunch.cli.options import OPTIONS
from plaunch.cli.program import main, run
from plaunch.errors import PluginLoadError, UsageError

SHELLS = ("bash", "zsh", "tcsh", "fish")
PACKAGE = """\
[plaunch.rendezvous]
acme = acme_of_tests:create
[plaunch.device_counts]
fpga = acme_of_tests:count
[plaunch.plugins]
broken = acme_of_tests:there_is_no_such_module
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path of every interpreter that is started, with an installed package."""
    folder = tmp_path / "site"
    info = folder / "acme_of_tests-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-of-tests\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(PACKAGE)
    old = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{old}" if old else str(folder))
    return str(folder)


@pytest.fixture(scope="session")
def bash_script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "plaunch.bash"
    path.write_text(completion_script("bash"))
    return path


def complete_in_bash(script, folder, *words):
    """What bash offers for the last of the words after `plaunch`."""
    line = " ".join(map(shlex.quote, ["plaunch", *words]))
    program = f"""
        source {shlex.quote(str(script))}
        COMP_WORDS=({line})
        COMP_CWORD={len(words)}
        _shtab_plaunch plaunch "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rdzv-b"], ["--rdzv-backend"]),
        (["--nnodes", "2", "--stand"], ["--standalone"]),
        (["--start-method", "f"], ["fork", "forkserver"]),
        (["--print-completion", ""], ["bash", "zsh", "tcsh", "fish"]),
        (["--log-dir", "da"], ["data"]),
        (["tra"], ["train.py"]),
        (["--dry-run", "tra"], ["train.py"]),  # a flag, unless its value is joined to it
        (["--nproc-per-node", "2", "tra"], ["train.py"]),
        (["train.py", "da"], ["data"]),
        (["--rdzv-backend", "c"], ["c10d"]),
        (["--rdzv-backend", "a"], ["acme"]),
        (["--nproc-per-node", "fp"], ["fpga"]),
        (["-p", "bro"], ["broken"]),
        (["--plugins", "acm"], ["acme"]),
    ],
)
def test_bash_completes_options_values_names_and_files(
    bash_script, site, tmp_path, words, expected
):
    folder = tmp_path / "work"
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text("")
    assert complete_in_bash(bash_script, folder, *words) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_is_given_every_option(shell):
    script = completion_script(shell)
    for option in OPTIONS:
        assert option.names[-1].lstrip("-") in script, option
    # Names are asked for by the interpreter that has the plugins.
    assert f"{shlex.quote(sys.executable)} -m plaunch.cli.completion rendezvous" in script


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", ["-n"]), ("zsh", ["-n"]), ("tcsh", ["-n"]), ("fish", ["-n"])]
)
def test_a_shell_takes_its_script(tmp_path, shell, words):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(completion_script(shell))
    done = subprocess.run(
        [program, *words, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_colon_in_a_placeholder_does_not_end_it_for_zsh():
    line = next(line for line in completion_script("zsh").splitlines() if '"--nnodes[' in line)
    assert r"N or MIN\:MAX" in line


def test_names_come_from_metadata_and_import_no_plugin(site):
    names = [installed_names(kind, [site], {}) for kind in ("rendezvous", "device_counts", "all")]
    assert names == [["acme"], ["fpga"], ["acme", "broken", "fpga"]]
    assert installed_names("rendezvous", [site], {"PLAUNCH_PLUGINS": "no:acme"}) == []
    assert installed_names("no-such-kind", [site], {}) == []
    assert "acme_of_tests" not in sys.modules


def test_the_option_prints_the_script(capsys):
    assert run(["--print-completion=bash"]) == {}
    assert capsys.readouterr().out == completion_script("bash")


def test_a_missing_library_is_one_line_with_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(PluginLoadError, match=r"pip install 'plaunch\[completion\]'"):
        completion_script("bash")
    assert main(["--print-completion", "zsh"]) == PluginLoadError.exit_code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_library_that_does_not_know_the_shell_says_which_it_knows(monkeypatch):
    import shtab

    monkeypatch.setattr(shtab, "SUPPORTED_SHELLS", ["zsh", "bash"])
    with pytest.raises(UsageError, match="'fish', only for bash, zsh"):
        completion_script("fish")
