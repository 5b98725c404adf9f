"""Completion: the scripts are run by the shells that are installed."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import subprocess
import sys

import pytest
from plaunch.cli.options import OPTIONS
from plaunch.cli.parser import installed_table
from plaunch.cli.program import main, run
from plaunch.errors import PluginLoadError, UsageError
from plaunch.plugin import installed_plugins
from plaunch_command_line import completion

from helpers.machine_parts import need

FIRST_PARTY_ONLY = {"PLAUNCH_DISABLE_PLUGIN_AUTOLOAD": "1"}
SHELLS = ("bash", "zsh", "tcsh", "fish")
PACKAGE = """\
[plaunch.rendezvous]
acme = acme_of_tests:create
[plaunch.device_counts]
fpga = acme_of_tests:count
[plaunch.plugins]
broken = acme_of_tests:there_is_no_such_module
"""


def completion_script(shell):
    return completion.completion_script(shell, installed_table((), FIRST_PARTY_ONLY))


def run_program(*command, check=True, **options):
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=check, **options
    )


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder with an installed package, on the path of every interpreter that is started."""
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


def complete_in_bash(script, folder, *words, breaks=":="):
    """The replies of bash for the last word after `plaunch`; bash splits words at `breaks`."""
    pieces = ["plaunch"]
    for word in words:
        pieces += [piece for piece in re.split(f"([{breaks}])", word) if piece] or [""]
    line = " ".join(["plaunch", *words])
    program = f"""
        source {shlex.quote(str(script))}
        COMP_WORDBREAKS={shlex.quote(breaks)}
        COMP_WORDS=({" ".join(map(shlex.quote, pieces))})
        COMP_CWORD={len(pieces) - 1}
        COMP_LINE={shlex.quote(line)}
        COMP_POINT={len(line)}
        complete=$(complete -p plaunch)
        complete=${{complete##*-F }}
        ${{complete%% *}} plaunch "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = run_program("bash", "--norc", "-c", program, cwd=folder)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.needs("bash")
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
        # The same, with the value behind an equals sign.
        (["--start-method=f"], ["fork", "forkserver"]),
        (["--start_method=forks"], []),  # options are offered with dashes only
        (["--print-completion="], ["bash", "zsh", "tcsh", "fish"]),
        (["--log-dir=da"], ["data"]),
        (["--rdzv-backend=c"], ["c10d"]),
        (["--nproc-per-node=fp"], ["fpga"]),
        (["--plugins=acm"], ["acme"]),
        (["--dry-run="], ["text", "json"]),
        (["--dry-run=j"], ["json"]),
        (["--dry-run=json", "tra"], ["train.py"]),
        (["--nnodes=1:2", "--rdzv-backend=c10d", "--stand"], ["--standalone"]),
        (["--nnodes=1:2", "tra"], ["train.py"]),
        (["--nnodes=1:2", ""], ["data", "train.py"]),
        (["--rdzv-endpoint=a:1", "--rdzv-backend=a"], ["acme"]),
        (["train.py", "--data=da"], ["data"]),
    ],
)
def test_bash_completes_options_values_names_and_files(
    bash_script, site, tmp_path, words, expected
):
    folder = tmp_path / "work"
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text("")
    assert complete_in_bash(bash_script, folder, *words) == expected


def test_bash_without_the_equals_sign_among_its_word_breaks(bash_script, tmp_path):
    (tmp_path / "data").mkdir()
    for words, expected in [
        (["--start-method=f"], ["--start-method=fork", "--start-method=forkserver"]),
        (["--log-dir=da"], ["--log-dir=data"]),
        (["--stand"], ["--standalone"]),
    ]:
        assert complete_in_bash(bash_script, tmp_path, *words, breaks=":") == expected


# The name of a function that shows what it was given, for the words that a shell has completed.
SHOW = "plaunch() { printf '<%s>' \"$@\"; echo ' was given'; }"
SET_UP = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source _plaunch"),
    "zsh": (["zsh", "-f", "-i"], "fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D"),
}


def typed_into(shell, folder, *lines):
    """What a shell on a terminal gives `plaunch` after each line, which ends with the tab key."""
    command, set_up = SET_UP[shell]
    (folder / "_plaunch").write_text(completion_script(shell))
    terminal, remote = pty.openpty()
    environ = {**os.environ, "TERM": "dumb", "PS1": "", "HOME": str(folder), "INPUTRC": "/dev/null"}
    process = subprocess.Popen(
        command, cwd=folder, env=environ, stdin=remote, stdout=remote, stderr=remote,
        start_new_session=True,
    )  # fmt: skip
    os.close(remote)
    seen = ""

    def until(text):
        nonlocal seen
        while text not in seen:
            assert select.select([terminal], [], [], 30)[0], f"{text!r} does not come: {seen!r}"
            seen += os.read(terminal, 4096).decode()
        before, _, seen = seen.partition(text)
        return before

    try:
        # The word differs from the typed text, which the terminal shows as well.
        os.write(terminal, f"{set_up}; {SHOW}; PS1='rea''dy>'\n".encode())
        until("ready>")
        given = []
        for line in lines:
            os.write(terminal, f"plaunch {line}\t\n".encode())
            words = re.findall(r"<(.*?)>", until(" was given").rpartition("\n")[2])
            given.append([word.rstrip("/") for word in words])  # zsh takes it away again
            until("ready>")
        return given
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_tab_key_completes_after_an_equals_sign(shell, site, tmp_path):
    need(shell)
    (tmp_path / "data").mkdir()
    (tmp_path / "train.py").write_text("")
    assert typed_into(
        shell,
        tmp_path,
        "--rdzv-backend=c1",
        "--nnodes=1:2 --start-method=sp",
        "--log-dir=da",
        "--dry-run=j",
        "--nproc-per-node=fp",
        "--rdzv-backend c1",
        "--dry-run --nnodes=2 tra",
    ) == [
        ["--rdzv-backend=c10d"],
        ["--nnodes=1:2", "--start-method=spawn"],
        ["--log-dir=data"],
        ["--dry-run=json"],
        ["--nproc-per-node=fpga"],
        ["--rdzv-backend", "c10d"],
        ["--dry-run", "--nnodes=2", "train.py"],
    ]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_has_every_option(shell):
    script = completion_script(shell)
    for option in OPTIONS:
        assert option.names[-1].lstrip("-") in script, option
    # Names are asked for by the interpreter that has the plugins.
    command = f"{shlex.quote(sys.executable)} {shlex.quote(completion.__file__)} rendezvous"
    assert command in script


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_can_run_its_script(tmp_path, shell):
    need(shell)
    script = tmp_path / "script"
    script.write_text(completion_script(shell))
    done = run_program(shell, "-n", str(script), check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_module_of_the_current_folder_is_run(tmp_path):
    """The user may press the key in any folder."""
    for name in ("argparse", "plaunch", "importlib_metadata"):
        (tmp_path / f"{name}.py").write_text("import os; os.write(1, b'evil'); raise SystemExit")
    command = completion._names_command("rendezvous")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = run_program("sh", "-c", command, cwd=tmp_path, env=environ)
    assert "c10d" in done.stdout.splitlines()
    assert "evil" not in done.stdout


def test_a_colon_in_a_placeholder_does_not_end_it_for_zsh():
    line = next(line for line in completion_script("zsh").splitlines() if '"--nnodes=[' in line)
    assert r"N or MIN\:MAX" in line


def test_names_come_from_metadata_and_import_no_plugin(site):
    installed = installed_plugins((), {}, [site])
    names = [installed.names(kind) for kind in ("rendezvous", "device_counts", "")]
    assert names == [["acme"], ["fpga"], ["acme", "broken", "fpga"]]
    blocked = installed_plugins((), {"PLAUNCH_PLUGINS": "no:acme"}, [site])
    assert blocked.names("rendezvous") == []
    assert installed.names("no-such-kind") == []
    assert "acme_of_tests" not in sys.modules


def test_the_option_prints_the_script(capsys):
    assert run(["--print-completion=bash"]) == {}
    assert capsys.readouterr().out == completion.completion_script("bash", installed_table((), {}))


def test_a_missing_library_is_one_line_with_the_package_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(PluginLoadError, match=r"pip install 'plaunch\[completion\]'"):
        completion_script("bash")
    assert main(["--print-completion", "zsh"]) == PluginLoadError.exit_code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_unsupported_shell_lists_the_supported_ones(monkeypatch):
    import shtab

    monkeypatch.setattr(shtab, "SUPPORTED_SHELLS", ["zsh", "bash"])
    with pytest.raises(UsageError, match="'fish', only for bash, zsh"):
        completion_script("fish")
