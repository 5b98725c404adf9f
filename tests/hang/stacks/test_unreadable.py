"""Workers whose stacks cannot be read: the reason, and the kernel's state."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from plaunch.process.proc import read_state
from plaunch_hang.stacks import format_groups, group, take

from helpers.programs import run_python, running_python
from helpers.stacks import readable_stacks  # noqa: F401 - a fixture
from helpers.waiting import wait_until

# Without the right to trace: a process of another user, one that is not dumpable, and one more.
NO_RIGHT = """
import json, subprocess, sys
from plaunch_hang.stacks import format_groups, group, take

def start(code):
    code += "; print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", code], **pipes)
    process.stdout.readline()
    return process

PR_SET_DUMPABLE = 4
workers = [
    subprocess.Popen(["sleep", "60"], user=65534),
    start(f"import ctypes; ctypes.CDLL(None).prctl({PR_SET_DUMPABLE}, 0)"),
    start("pass"),
]
try:
    seen = take({rank: worker.pid for rank, worker in enumerate(workers)})
    print(json.dumps(format_groups(group({"a": seen}))))
finally:
    for worker in workers:
        worker.kill()
"""


@pytest.mark.needs("root")
@pytest.mark.usefixtures("readable_stacks")
def test_without_the_right_to_trace():
    without = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    done = subprocess.run(
        [*without, sys.executable, "-c", NO_RIGHT],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout)
    assert lines[0] == "1 rank: 2 <module> (<string>:1)"
    assert lines[-1].startswith("the stack of ranks 0-1 is unknown: the system does not allow it")
    assert all("state S" in line for line in lines[1:-1])


@pytest.mark.usefixtures("readable_stacks")
def test_a_worker_that_is_not_python():
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            lines = format_groups(group({"a": take({0: process.pid})}))
        finally:
            process.kill()
    assert lines[0].startswith("1 rank: 0 state ")
    assert lines[1] == "the stack of rank 0 is unknown: it is not Python"


NO_MAIN = """\
import ctypes, signal, threading
threading.Thread(target=signal.sigwait, args=([signal.SIGUSR1],)).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.usefixtures("readable_stacks")
def test_a_worker_whose_main_thread_has_ended():
    with running_python("-c", NO_MAIN) as process:
        process.stdout.readline()
        wait_until(lambda: read_state(process.pid) == "Z", "the end of the main thread")
        seen = take({0: process.pid})
        lines = format_groups(group({"a": seen}))
    assert not seen[0].has_ended
    assert lines == [
        "1 rank: 0 its main thread has ended, 1 others have not",
        "the stack of rank 0 is unknown: its main thread has ended",
    ]


def test_py_spy_is_neither_beside_python_nor_on_path(monkeypatch, tmp_path):
    with running_python("-c", "print(flush=True); input()") as process:
        process.stdout.readline()
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        monkeypatch.setenv("PATH", str(tmp_path))
        lines = format_groups(group({"a": take({0: process.pid})}))
    assert lines[0].startswith("1 rank: 0 state ")
    assert lines[1] == (
        "the stack of rank 0 is unknown: py-spy is not installed (pip install 'plaunch[stacks]')"
    )


def test_no_slow_modules_are_imported():
    """This code runs in the launcher."""
    code = "import sys; from plaunch_hang.stacks import JobStacks, take; "
    done = run_python("-c", code + "print('torch' in sys.modules, 'asyncio' in sys.modules)")
    assert done.stdout.split() == ["False", "False"], done.stderr
