"""The start and the end of the process; `tests/e2e/test_evil_plugins.py` has whole launches."""

from __future__ import annotations

import os
import subprocess

import pytest

from helpers.programs import run_python

MISSING = """\
import os, sys
from plaunch.cli.entry import open_missing_streams
for fd in {closed}:
    os.close(fd)
open_missing_streams()
links = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in (0, 1, 2)]
inherited = [os.get_inheritable(fd) for fd in (0, 1, 2)]
next_fd = os.open("/", os.O_RDONLY)
with open({path!r}, "w") as file:
    print(links, inherited, next_fd, file=file)
"""


@pytest.mark.parametrize("closed", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_streams_that_are_closed_are_opened_to_nothing(tmp_path, closed):
    path = tmp_path / "said"
    program = MISSING.format(closed=closed, path=str(path))
    given = tmp_path / "given"
    with given.open("w+") as file:
        streams = {"stdin": file, "stdout": file, "stderr": file}
        run_python("-c", program, check=True, capture_output=False, **streams)
    links = ["/dev/null" if fd in closed else str(given) for fd in range(3)]
    assert path.read_text() == f"{links} [True, True, True] 3\n"


INTERRUPTED = """\
import sys
from plaunch.cli.entry import entry_point
class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "plaunch.cli.program":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting)
entry_point()
"""


def test_an_interrupt_during_the_imports_is_one_line():
    done = run_python("-c", INTERRUPTED)
    assert done.returncode == 130
    assert done.stderr == "plaunch: interrupted while no worker was running\n"


# A process that ends with code 17.
PROGRAM = """\
import atexit, concurrent.futures, sys, threading, time, types, plaunch.cli.entry
never = threading.Event()
class Late:
    def __del__(self):
        print("taken apart")
late = Late()
{others}
atexit.register(print, "first in, last out")
{left}
print("main", end=" ")
plaunch.cli.entry.end(17, {patience})
"""
TORCH = "sys.modules['torch'] = types.ModuleType('torch')"
IN_ORDER = "main first in, last out\n"


def run(left, patience=60):
    done = run_alone(left=left, patience=patience)
    assert done.returncode == 17
    return done.stdout, done.stderr


def run_alone(*options, others="", left="pass", patience=60, stdout=subprocess.PIPE):
    pipes = {"capture_output": False, "stdout": stdout, "stderr": subprocess.PIPE}
    program = PROGRAM.format(others=others, left=left, patience=patience)
    return run_python(*options, "-c", program, **pipes)


def test_exit_functions_run_and_buffers_are_written_but_nothing_is_taken_apart():
    """A thread that comes back then from C++ code aborts the process."""
    done = run_alone()
    assert (done.returncode, done.stdout, done.stderr) == (17, IN_ORDER, "")


def test_with_an_interactive_interpreter_the_process_stays():
    assert "taken apart" in run_alone("-i").stdout


def test_the_interpreter_reports_a_stdout_that_cannot_be_flushed():
    with open("/dev/full", "w") as full:
        done = run_alone(stdout=full)
    assert done.returncode == 120
    assert "No space left on device" in done.stderr


def test_with_torch_loaded_the_process_ends_in_order_but_at_once():
    """What is left to do is done: threads, exit functions, buffers; torch is not unloaded."""
    left = (
        'sys.modules["torch"].late = late\n'
        'threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()\n'
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    )
    done = run_alone(others=TORCH, left=left)
    assert (done.returncode, done.stdout) == (17, "main thread\nfirst in, last out\n"), done.stderr


DONE = {
    "nothing": "pass",
    "a daemon": "threading.Thread(target=never.wait, daemon=True).start()",
    "a thread that ends": "threading.Thread(target=time.sleep, args=(0.1,)).start()",
    "a pool": "global pool; pool = concurrent.futures.ThreadPoolExecutor(1); pool.submit(int)",
}


@pytest.mark.parametrize("left", DONE.values(), ids=DONE)
def test_what_ends_by_itself_is_waited_for(left):
    assert run(left) == (IN_ORDER, "")


def test_its_own_work_has_more_time_than_the_threads_of_plugins():
    work = (
        "from plaunch.threads import FinalWork; FinalWork('x', lambda: time.sleep(2), 60).start()"
    )
    assert run(work, 0.5) == (IN_ORDER, "")


@pytest.mark.parametrize(
    ("left", "patience", "said", "written"),
    [
        (
            "threading.Thread(target=never.wait, name='lasting').start()",
            0.01,
            "plaunch does not wait any longer for: thread 'lasting' (in wait, ",
            IN_ORDER,
        ),
        (
            "atexit.register(never.wait)",
            0.01,
            "plaunch does not wait any longer for: a function at exit (in wait, ",
            "main ",
        ),
        (
            "from plaunch.threads import FinalWork; FinalWork('the report', never.wait, 0).start()",
            0.01,
            "plaunch does not wait any longer for: the report\n",
            IN_ORDER,
        ),
        ("atexit.register(lambda: 1 / 0)", 60, "ZeroDivisionError", IN_ORDER),
    ],
    ids=["a thread", "a function that does not return", "its own work", "a function that raises"],
)
def test_what_does_not_end_is_named_and_the_rest_is_done(left, patience, said, written):
    out, err = run(left, patience)
    assert said in err
    assert out == written


def test_a_stdout_that_nobody_reads_is_named():
    reader, writer = os.pipe()
    fill = (
        "import os; os.set_blocking(1, False)\n"
        "try:\n"
        "    while True: os.write(1, b'x' * 4096)\n"
        "except BlockingIOError: os.set_blocking(1, True)\n"
    )
    try:
        done = run_alone(others=f"{TORCH}\n{fill}", patience=0.01, stdout=writer)
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == 17
    assert "does not wait any longer for: stdout or stderr, which is blocked" in done.stderr


CLOSED = "threading.Thread(target=never.wait).start(); sys.stderr.close()"
BROKEN = (
    "type('Odd', (threading.Thread,), {'name': property(lambda self: 1 / 0)})"
    "(target=never.wait).start()"
)


@pytest.mark.parametrize("left", [CLOSED, BROKEN], ids=["a closed stderr", "an error"])
def test_nothing_keeps_what_ends_the_process_from_doing_so(left):
    run(left, 0.01)
