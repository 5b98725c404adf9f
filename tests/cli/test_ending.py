"""The end of the process; `tests/e2e/test_evil_plugins.py` has whole launches."""

from __future__ import annotations

import subprocess

import pytest

from helpers.programs import run_python

# What is left when `main` returns 17.
PROGRAM = """\
import atexit, sys, types, plaunch.cli.program, plaunch.cli.entry
class Late:
    def __del__(self):
        print("taken apart")
late = Late()
{others}
def main():
    atexit.register(print, "first in, last out")
    {left}
    print("main", end=" ")
    return 17
plaunch.cli.program.main = main
plaunch.cli.entry.entry_point()
"""
PLUGIN = """\
import concurrent.futures, threading, time, plaunch.cli.ending
plaunch.cli.ending.PATIENCE = {patience}
never = threading.Event()
"""
TORCH = "import threading, time; sys.modules['torch'] = types.ModuleType('torch')"
IN_ORDER = "main first in, last out\n"


def run(left, patience=60):
    """Run it in a process in which a plugin was imported."""
    others = PLUGIN.format(patience=patience)
    done = run_python("-c", PROGRAM.format(others=others, left=left))
    assert done.returncode == 17
    return done.stdout, done.stderr


def run_alone(*options, others="", left="pass", stdout=subprocess.PIPE):
    pipes = {"capture_output": False, "stdout": stdout, "stderr": subprocess.PIPE}
    return run_python(*options, "-c", PROGRAM.format(others=others, left=left), **pipes)


def test_exit_functions_run_and_buffers_are_written_but_nothing_is_taken_apart():
    """A thread that comes back then from C++ code aborts the process."""
    done = run_alone()
    assert (done.returncode, done.stdout, done.stderr) == (17, IN_ORDER, "")


def test_with_an_interactive_interpreter_the_process_stays():
    assert "taken apart" in run_alone("-i").stdout


def test_a_stdout_that_cannot_be_flushed_is_told_by_the_interpreter():
    with open("/dev/full", "w") as full:
        done = run_alone(stdout=full)
    assert done.returncode == 120
    assert "No space left on device" in done.stderr


def test_with_torch_loaded_the_process_ends_in_order_but_at_once():
    """What is left to do is done: threads, exit functions, buffers; torch is not unloaded."""
    left = """
    sys.modules["torch"].late = late
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    """
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
        ("atexit.register(lambda: 1 / 0)", 60, "ZeroDivisionError", IN_ORDER),
    ],
    ids=["a thread", "a function that does not return", "a function that raises"],
)
def test_what_does_not_end_is_named_and_the_rest_is_done(left, patience, said, written):
    out, err = run(left, patience)
    assert said in err
    assert out == written


CLOSED = "threading.Thread(target=never.wait).start(); sys.stderr.close()"
BROKEN = (
    "threading.Thread(target=never.wait).start(); "
    "plaunch.cli.ending._Ending._held_by = lambda self: 1 / 0"
)


@pytest.mark.parametrize("left", [CLOSED, BROKEN], ids=["a closed stderr", "an error"])
def test_nothing_keeps_what_ends_the_process_from_doing_so(left):
    run(left, 0.01)
