"""Marks of the launcher and of jobs, and secrets, which workers do not inherit."""

from __future__ import annotations

import importlib
import os
import sys

import pytest
from plaunch.process import marks, proc, start_processes
from plaunch.process.marks import LAUNCHER_VARIABLE, is_started_by_launcher, owns_process
from plaunch.process.stopping.guard import start_guard

from helpers.programs import run_python
from helpers.waiting import wait_until

SECRET = "a secret of the nodes"
SECRETS = ("PLAUNCH_RDZV_TOKEN", "PLAUNCH_ETCD_PASSWORD", "PLAUNCH_OF_A_PLUGIN_PASSWORD")
NAMES = (*SECRETS, "PLAUNCH_LAUNCHER")
KEPT = ("PLAUNCH_ETCD_USER", "TOKEN", "MY_PASSWORD", "PLAUNCH_TOKENS")


@pytest.fixture
def secrets(monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, SECRET)
    for name in ("INHERITED", *KEPT):
        monkeypatch.setenv(name, "yes")


@pytest.mark.usefixtures("secrets")
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


@pytest.mark.usefixtures("secrets")
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


@pytest.mark.usefixtures("secrets")
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
from plaunch.process.stopping.job import Reaper

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
    pid = reaper.guards.guard.pid
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


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_what_is_forked_shows_no_secret_either(start_method, tmp_path):
    """The kernel tells others what the process that forked it was started with."""
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PLAUNCH_")}
    env.update({"PLAUNCH_RDZV_TOKEN": SECRET, "PLAUNCH_ETCD_PASSWORD": SECRET, "KEPT": "yes"})
    told = run_python(script, start_method, env=env, check=True).stdout.splitlines()
    assert told == ["['KEPT=yes']", "['KEPT=yes']", f"['PLAUNCH_RDZV_TOKEN={SECRET}']"]


def test_only_the_command_line_owns_its_process(monkeypatch):
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
        "from plaunch.process.marks import owns_process\n"
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


# --- the tags of a job ----------------------------------------------------------------------------

JOB = b"0123456789ab"


def test_a_worker_has_one_tag_and_one_within_a_worker_has_both():
    assert marks.make_tags("0123456789ab", 3, None) == "0123456789ab.3"
    assert marks.make_tags("0123456789ab", 3, "") == "0123456789ab.3"
    outer = marks.make_tags("aaaaaaaaaaaa", 0, None)
    both = marks.make_tags("bbbbbbbbbbbb", 1, outer)
    environ = f"PATH=/bin\0PLAUNCH_JOBS={both}\0".encode()
    assert marks.find_rank(environ, b"aaaaaaaaaaaa") == 0
    assert marks.find_rank(environ, b"bbbbbbbbbbbb") == 1


def test_names_of_jobs_are_not_made_twice():
    names = {marks.make_job_id() for _ in range(1000)}
    assert len(names) == 1000
    assert {len(name) for name in names} == {12}


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        (b"PLAUNCH_JOBS=0123456789ab.0\0", 0),
        (b"PLAUNCH_JOBS=0123456789ab.17", 17),
        (b"A=1\0PLAUNCH_JOBS=ffffffffffff.1:0123456789ab.2:eeeeeeeeeeee.3\0B=2\0", 2),
        (b"", None),
        (b"PLAUNCH_JOBS=\0", None),
        (b"PLAUNCH_JOBS=0123456789ab\0", None),
        (b"PLAUNCH_JOBS=0123456789ab.\0", None),
        (b"PLAUNCH_JOBS=0123456789ab.x\0", None),
        (b"PLAUNCH_JOBS=0123456789abc.1\0", None),
        (b"PLAUNCH_JOBS=00123456789ab.1\0", None),
        (b"MY_PLAUNCH_JOBS=0123456789ab.1\0", None),
        (b"TEXT=PLAUNCH_JOBS=0123456789ab.1\0", None),
    ],
)
def test_only_the_very_tag_counts(environ, rank):
    assert marks.find_rank(environ, JOB) == rank


@pytest.mark.parametrize(
    ("title", "rank"),
    [
        (b"worker 3 ffffffffffff.1:0123456789ab.3\0\0\0", 3),
        (b"0123456789ab.0\0", 0),
        (b"python\0train.py\0", None),
        (b"grep\x000123456789ab\0", None),
        (b"x0123456789ab.0", None),
    ],
)
def test_a_title_has_tags_too(title, rank):
    assert marks.find_rank_in_title(title, JOB) == rank


def test_environments_are_read(sleep):
    program = sleep(env={"PLAUNCH_JOBS": "0123456789ab.5"})
    # The kernel shows none for a moment, in the middle of making it another program.
    wait_until(lambda: proc.read_environ(program.pid), "it has an environment")
    assert marks.find_rank(proc.read_environ(program.pid), JOB) == 5
    assert proc.read_proc(f"{program.pid}/cmdline") == b"sleep\x00600\x00"
    assert proc.read_user(program.pid) == os.getuid()
    program.kill()
    program.wait()
    assert proc.read_environ(program.pid) == b""
    assert proc.read_user(program.pid) == -1
