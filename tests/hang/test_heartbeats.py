"""Heartbeats, written by real worker processes and read by the launcher."""

from __future__ import annotations

import os

import pytest
from plaunch.errors import UsageError
from plaunch.worker import section
from plaunch_hang.heartbeats import HeartbeatMemory, HeartbeatState
from plaunch_hang.worker import VARIABLE

from helpers.programs import run_python

IMPORT = "from plaunch.worker import heartbeat, section\n"


@pytest.fixture
def memory():
    """The heartbeat memory of this process as a launcher."""
    memory = HeartbeatMemory()
    yield memory
    memory.close()


@pytest.fixture
def run(memory):
    """Run a script as the worker of local rank 1, and read its heartbeats."""

    def call(text, **variables):
        env = {**os.environ, VARIABLE: memory.variable(1), **variables}
        done = run_python("-c", IMPORT + text, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        return memory.read(1)

    return call


def test_a_worker_reports_its_step(run, memory):
    beat = run("for i in range(3): heartbeat(i, total=7)")
    assert (beat.number, beat.step, beat.total, beat.section, beat.name) == (3, 2, 7, 0.0, "")
    assert beat.longest > 0
    assert memory.read(0) == memory.read(2) == HeartbeatState()


def test_the_time_before_the_first_heartbeat_is_not_a_gap(run):
    assert run("import time; time.sleep(0.01); heartbeat()") == HeartbeatState(1)


def test_a_slot_is_cleared_for_the_next_round(run, memory):
    assert run("heartbeat(5)").number == 1
    memory.variable(1)
    assert memory.read(1) == HeartbeatState()


def test_a_section_reports_its_time_limit(run):
    beat = run("section('save \\x1b[1m' + 'x' * 99, '20m').__enter__()")
    assert (beat.number, beat.section) == (1, 1200.0)
    assert beat.name == "save \\x1b[1m" + "x" * 55


def test_sections_end_and_leave_no_gap(run):
    beat = run(
        "import time\n"
        "with section('outer', 60):\n"
        "    with section('inner', float('inf')): time.sleep(0.3)\n"
        "    time.sleep(0.3)\n"
        "    s = section('again', '1h')\n"
        "    try:\n"
        "        with s: raise ValueError\n"
        "    except ValueError: pass\n"
        "heartbeat()"
    )
    assert (beat.number, beat.section, beat.name) == (7, 0.0, "")
    assert beat.longest < 0.3


def test_an_outer_section_continues_after_an_inner_one(run):
    beat = run("section('a', 'inf').__enter__()\nwith section('b', 9): pass")
    assert (beat.section, beat.name) == (-0.001, "a")


@pytest.mark.parametrize("step", ["-1", "1.5", "'x'", "1 << 63", "object()"])
def test_invalid_steps_are_ignored(run, step):
    assert run(f"heartbeat({step}, {step})")[:3] == (1, -1, -1)


def test_a_step_may_be_a_number_of_another_type(run):
    assert run("class N:\n  def __index__(self): return 4\nheartbeat(N(), True)")[:3] == (1, 4, 1)


@pytest.mark.parametrize(
    "text",
    [
        # after the worker has closed everything, in another thread, and in what it has started
        "import os; os.closerange(3, 100); heartbeat()",
        "import threading; t = threading.Thread(target=heartbeat); t.start(); t.join()",
        "import os\nif os.fork(): os.wait()\nelse: heartbeat(); os._exit(0)",
        "import subprocess, sys; subprocess.check_call([sys.executable, '-c', "
        "'import plaunch.worker; plaunch.worker.heartbeat()'])",
    ],
    ids=["closed", "thread", "fork", "subprocess"],
)
def test_heartbeats_of_threads_and_child_processes(run, text):
    assert run(text).number == 1


def test_a_thread_that_beats_while_the_process_forks(run):
    text = (
        "import os, threading\n"
        "heartbeat()\n"
        "over = False\n"
        "def beat():\n"
        "    while not over: heartbeat()\n"
        "t = threading.Thread(target=beat); t.start()\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "pid = os.fork()\n"
        "if not pid: heartbeat(); os._exit(0)\n"
        "code = os.waitpid(pid, 0)[1]; over = True; t.join(); assert code == 0"
    )
    assert run(text).number >= 2


def test_a_fork_server_that_has_beaten_forks_workers_that_beat(run, memory):
    text = (
        "import os\n"
        f"value = os.environ.pop('{VARIABLE}')\n"
        "heartbeat()\n"
        "pid = os.fork()\n"
        "if pid: os.waitpid(pid, 0)\n"
        f"else: os.environ['{VARIABLE}'] = value; heartbeat(); os._exit(0)"
    )
    assert run(text).number == 1


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x",
        "/no/such/file@0",
        "/dev/null@0",
        "{path}@-256",
        "{path}@1",
        "{path}@1048576",
        "{file}@0",
    ],
)
def test_without_a_valid_variable_heartbeats_do_nothing(run, memory, tmp_path, value):
    file = tmp_path / "file"
    file.write_bytes(bytes(4096))
    path = memory.variable(1).rpartition("@")[0]
    text = "heartbeat(1, 2)\nwith section('x', 5): heartbeat()"
    assert run(text, **{VARIABLE: value.format(path=path, file=file)}) == HeartbeatState()
    assert file.read_bytes() == bytes(4096)


def test_heartbeats_import_almost_nothing():
    text = (
        "import sys; before = set(sys.modules)\n" + IMPORT + "heartbeat()\n"
        "print(*sorted(m for m in set(sys.modules) - before if not m.startswith('plaunch')))"
    )
    done = run_python("-c", text)
    known = {"__future__", "importlib", "importlib._bootstrap", "importlib._bootstrap_external"}
    assert set(done.stdout.split()) <= known | {"_abc", "mmap", "warnings"}


@pytest.mark.parametrize("timeout", [0, -1, "soon", "", float("nan"), True, None])
def test_an_invalid_timeout_of_a_section(timeout):
    with pytest.raises(UsageError, match=r"timeout of plaunch\.worker\.section is"):
        section("x", timeout)


def test_an_unknown_name_of_the_module():
    with pytest.raises(ImportError, match="cannot import name 'beat'"):
        from plaunch.worker import beat  # noqa: F401


def test_invalid_values_in_a_slot_are_tolerated(memory):
    path, _, offset = memory.variable(3).rpartition("@")
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"\xff" * 256, int(offset))
    assert memory.read(3) == HeartbeatState(0, -1, -1, 0.0, -0.001, "\ufffd" * 64)


@pytest.mark.parametrize("local_rank", [-1, 1 << 16])
def test_local_ranks_without_a_slot(memory, local_rank):
    with pytest.raises(OSError, match="no slot for local rank"):
        memory.variable(local_rank)


def test_without_memory_files(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(OSError, match="no memory files"):
        HeartbeatMemory()


def test_a_worker_cannot_truncate_the_memory(memory):
    path = memory.variable(3).rpartition("@")[0]
    with open(path, "r+b", buffering=0) as file, pytest.raises(PermissionError):
        file.truncate(0)
