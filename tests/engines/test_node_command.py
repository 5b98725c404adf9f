"""The command of an agent: its Python, and the set-up line before it."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from plaunch.errors import UsageError
from plaunch_engines.node_command import (
    begin_path,
    check_setup,
    node_command,
    read_hosts,
    read_pythons,
    with_python,
)

from helpers.processes import is_gone
from helpers.waiting import wait_until


def test_without_a_set_up_line():
    assert node_command("python", "/work", "t.py") == [
        *("python", "-m", "plaunch_engines.node", "/work", "t.py"),
    ]


@pytest.mark.parametrize("setup", ["", "module load cuda"])
def test_another_python(setup):
    command = node_command("python", "/work", "python", setup)
    assert with_python(command, "/opt/python") == node_command(
        "/opt/python", "/work", "python", setup
    )


# --- the set-up line ------------------------------------------------------------------------------


def run_before(program, setup):
    """Run a program after a set-up line, in the place of an agent."""
    *before, python, _, _, folder, script = node_command(sys.executable, "", "", setup)
    del folder, script
    return subprocess.run(
        [*before, python, "-c", program], capture_output=True, text=True, input="for the agent",
        check=False,
    )  # fmt: skip


def test_the_agent_has_the_environment_and_the_input():
    done = run_before(
        "import os; print(os.environ['WORD'], os.getcwd(), input())",
        "WORD='it'\"'s\"; export WORD; cd / && cat",
    )
    assert done.stdout == "it's / for the agent\n", done
    assert done.stderr == ""


def test_the_agent_has_no_other_child():
    done = run_before(
        "import os; print(open(f'/proc/self/task/{os.getpid()}/children').read().split())", "true"
    )
    assert done.stdout == "[]\n", done


@pytest.mark.parametrize(
    ("setup", "code"), [("echo no module >&2; false", 1), ("exit 3", 3), ("nosuchprogram", 127)]
)
def test_a_set_up_line_that_fails(setup, code):
    done = run_before("print('never')", setup)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.splitlines()[-1] == f'--node-setup="{setup}" has ended with {code}'


def test_a_python_that_the_set_up_line_does_not_find():
    done = subprocess.run(
        node_command("nosuchpython", "", "", "true"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 127
    assert done.stderr == "there is no nosuchpython; name the Python of the nodes with " + (
        "--node-python\n"
    )


def test_a_set_up_line_that_hangs_ends_without_its_parent(tmp_path):
    """As on a host whose connection has ended."""
    pids = tmp_path / "pids"
    setup = f"echo $$ >> '{pids}'; sleep 600 & echo $! >> '{pids}'; wait"
    parent = subprocess.Popen(
        [
            sys.executable, "-c",
            "import subprocess, sys; subprocess.run(sys.argv[1:], start_new_session=True)",
            *node_command(sys.executable, "", "", setup),
        ],
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    found = wait_until(
        lambda: pids.exists() and len(words := pids.read_text().split()) == 2 and words, "the line"
    )
    try:
        parent.kill()
        parent.wait()
        for pid in found:
            wait_until(lambda pid=int(pid): is_gone(pid), "the end of the line")
    finally:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def test_a_set_up_line_is_one_line():
    assert check_setup("module load cuda && . env") == "module load cuda && . env"
    with pytest.raises(UsageError, match="--node-setup is one line; write && between commands"):
        check_setup("a\nb")


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], ("", {})),
        (["/opt/python"], ("/opt/python", {})),
        (["python3.12"], ("python3.12", {})),
        (["/a=b/python"], ("/a=b/python", {})),
        (["n[1-2],m=/opt/a=b"], ("", dict.fromkeys(("n1", "n2", "m"), "/opt/a=b"))),
        (["/a", "n1=/b", "/c", "n1=/d"], ("/c", {"n1": "/d"})),
    ],
)
def test_pythons_of_hosts(texts, expected):
    assert read_pythons(texts) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node1=", "--node-python=node1=: there is no path"),
        ("", "there is no path"),
        ("node[1=/opt", r"--node-python=node\[1=/opt: .*does not close a bracket"),
    ],
)
def test_pythons_that_are_invalid(text, message):
    with pytest.raises(UsageError, match=message):
        read_pythons([text])


def test_hosts_are_read_with_their_place():
    assert read_hosts("a[1-2]", "--exclude") == ["a1", "a2"]
    with pytest.raises(UsageError, match=r"^--exclude: the list of hosts"):
        read_hosts("a,,b", "--exclude")


@pytest.mark.parametrize(
    ("path", "python", "expected"),
    [
        ("/bin", "/venv/bin/python", "/venv/bin:/bin"),
        ("/venv/bin:/bin", "/venv/bin/python", "/venv/bin:/bin"),
        ("/bin:/venv/bin", "/venv/bin/python", "/venv/bin:/bin:/venv/bin"),
        ("", "/venv/bin/python", "/venv/bin"),
        ("/bin", "", "/bin"),
    ],
)
def test_the_search_path_begins_with_the_folder_of_python(path, python, expected):
    assert begin_path(path, python) == expected
