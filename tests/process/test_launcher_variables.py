"""What workers do not inherit: the launcher's mark, and its secrets."""

from __future__ import annotations

import importlib
import os
import sys

import pytest
from plaunch.process import start_processes
from plaunch.process.launcher_variables import (
    LAUNCHER_VARIABLE,
    is_started_by_launcher,
    owns_process,
)
from plaunch.process.stopping.guard import start_guard

from helpers.programs import run_python
from helpers.waiting import wait_until

SECRET = "a secret of the nodes"
SECRETS = ("PLAUNCH_RDZV_TOKEN", "PLAUNCH_ETCD_PASSWORD", "PLAUNCH_OF_A_PLUGIN_PASSWORD")
NAMES = (*SECRETS, "PLAUNCH_LAUNCHER")
KEPT = ("PLAUNCH_ETCD_USER", "TOKEN", "MY_PASSWORD", "PLAUNCH_TOKENS")


@pytest.fixture(autouse=True)
def _secrets(monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, SECRET)
    for name in ("INHERITED", *KEPT):
        monkeypatch.setenv(name, "yes")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_functions(start_method, monkeypatch):
    monkeypatch.syspath_prepend(
        os.path.join(os.path.dirname(__file__), "..", "multiprocessing", "modules")
    )
    environment = importlib.import_module("worker_functions").environment
    context = start_processes(
        "t", environment, {0: ()}, {0: {"LOCAL_RANK": 0}}, start_method=start_method
    )
    seen = context.wait(60).return_values[0]
    assert seen["LOCAL_RANK"] == "0"
    assert {seen[name] for name in ("INHERITED", *KEPT)} == {"yes"}
    assert SECRET not in seen.values()


def test_programs(tmp_path):
    code = f"import os; open({str(tmp_path / 'env')!r}, 'w').write(repr(dict(os.environ)))"
    context = start_processes("t", sys.executable, {0: ("-c", code)})
    assert not context.wait(60).is_failed()
    seen = (tmp_path / "env").read_text()
    assert "'INHERITED': 'yes'" in seen
    assert SECRET not in seen


def environ_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return [entry for entry in file.read().split(b"\0") if entry]


def test_the_guard_that_is_a_program_of_its_own_gets_no_secret(monkeypatch):
    monkeypatch.setenv("PLAUNCH_LAUNCHER", "kept")  # by this its launcher knows it
    started = start_guard(can_fork=lambda: False)
    try:
        # There is none while it is executed.
        seen = wait_until(lambda: environ_of(started.pid), "an environment")
        assert b"PLAUNCH_LAUNCHER=kept" in seen
        assert not [entry for entry in seen if SECRET.encode() in entry]
    finally:
        started.dismiss()


FORKED = """\
import os, sys, time
from plaunch.process import ContextComponents, start_processes
from plaunch.process.stopping.reaper import Reaper

def environ(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read().split(b"\\0")

def worker():
    return environ(os.getpid())

if __name__ == "__main__":
    method = sys.argv[1]
    reaper = Reaper(can_fork=lambda: True)
    components = ContextComponents(reaper=reaper)
    context = start_processes("t", worker, {0: ()}, start_method=method, components=components)
    pid = reaper.guard.pid
    deadline = time.monotonic() + 60
    while open(f"/proc/{pid}/comm").read() != "workers-guard\\n":
        assert time.monotonic() < deadline
        time.sleep(0.001)
    for seen in (environ(pid), context.wait(60).return_values[0]):
        print(sorted(entry.decode() for entry in seen if b"PLAUNCH_" in entry or b"KEPT" in entry))
    print(sorted(entry.decode() for entry in environ(os.getpid()) if b"_TOKEN=" in entry))
    context.close()
    reaper.close()
"""


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_what_is_forked_shows_no_secret_either(start_method, tmp_path):
    """The kernel tells others what the process that forked it was started with."""
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PLAUNCH_")}
    env.update({"PLAUNCH_RDZV_TOKEN": SECRET, "PLAUNCH_ETCD_PASSWORD": SECRET, "KEPT": "yes"})
    told = run_python(script, start_method, env=env, check=True).stdout.splitlines()
    assert told == ["['KEPT=yes']", "['KEPT=yes']", f"['PLAUNCH_RDZV_TOKEN={SECRET}']"]


def test_the_command_line_says_that_it_owns_its_process(monkeypatch):
    assert not owns_process()
    monkeypatch.setenv(LAUNCHER_VARIABLE, str(os.getpid()))
    assert owns_process()
    monkeypatch.setenv(LAUNCHER_VARIABLE, str(os.getppid()))
    assert not owns_process()


def test_the_entry_point_uses_that_variable():
    """It spells the name out, so that `--help` need not import where it is defined."""
    done = run_python(
        "-c",
        "import sys\n"
        "from plaunch.cli import entry\n"
        "from plaunch.process.launcher_variables import owns_process\n"
        "sys.argv = ['plaunch', '--version']\n"
        "entry.end = lambda code: sys.stderr.write(f'owned: {owns_process()}')\n"
        "entry.entry_point()\n",
    )
    assert done.stderr == "owned: True"


def test_what_the_launcher_started_is_known():
    environ = f"A=1\0PLAUNCH_LAUNCHER={os.getpid()}\0".encode()
    assert is_started_by_launcher(environ, os.getpid())
    assert not is_started_by_launcher(environ, os.getppid())
    assert not is_started_by_launcher(environ + b"0", os.getpid() * 10)
