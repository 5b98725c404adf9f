"""The end of the process; `tests/e2e/test_evil_plugins.py` has whole launches."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What is left when `main` returns 17, in a process in which a plugin was imported.
PROGRAM = """\
import atexit, concurrent.futures, sys, threading, time
import plaunch.cli.program, plaunch.cli.entry, plaunch.plugin.culprits
import plaunch.cli.ending
plaunch.cli.ending.PATIENCE = {patience}
never = threading.Event()
def main():
    atexit.register(print, "first in, last out")
    {left}
    print("main", end=" ")
    return 17
plaunch.cli.program.main = main
plaunch.cli.entry.entry_point()
"""


def run(left, patience):
    code = PROGRAM.format(left=left, patience=patience)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


DONE = {
    "nothing": "pass",
    "a daemon": "threading.Thread(target=never.wait, daemon=True).start()",
    "a thread that ends": "threading.Thread(target=time.sleep, args=(0.1,)).start()",
    "a pool": "global pool; pool = concurrent.futures.ThreadPoolExecutor(1); pool.submit(int)",
}


@pytest.mark.parametrize("left", DONE.values(), ids=DONE)
def test_what_ends_by_itself_is_waited_for(left):
    done = run(left, 60)
    assert (done.returncode, done.stderr) == (17, "")
    assert done.stdout == "main first in, last out\n"


def test_a_thread_that_does_not_end_is_named_and_the_rest_is_done():
    done = run("threading.Thread(target=never.wait, name='lasting').start()", 0.01)
    assert done.returncode == 17
    assert "plaunch does not wait any longer for: thread 'lasting' (in wait, " in done.stderr
    assert done.stdout == "main first in, last out\n"


def test_a_function_that_does_not_return_is_named_and_what_was_said_is_written():
    done = run("atexit.register(never.wait)", 0.01)
    assert done.returncode == 17
    assert "plaunch does not wait any longer for: a function at exit (in wait, " in done.stderr
    assert done.stdout == "main "


def test_a_function_that_raises_changes_nothing():
    done = run("atexit.register(lambda: 1 / 0)", 60)
    assert done.returncode == 17
    assert "ZeroDivisionError" in done.stderr
    assert done.stdout == "main first in, last out\n"


CLOSED = "threading.Thread(target=never.wait).start(); sys.stderr.close()"
BROKEN = (
    "threading.Thread(target=never.wait).start(); "
    "plaunch.cli.ending._Ending._held_by = lambda self: 1 / 0"
)


@pytest.mark.parametrize("left", [CLOSED, BROKEN], ids=["a closed stderr", "an error"])
def test_nothing_keeps_what_ends_the_process_from_doing_so(left):
    assert run(left, 0.01).returncode == 17


def test_the_interpreter_is_not_taken_apart_beside_threads_that_are_left():
    """One that comes back then from C++ code aborts the process."""
    left = """
    class Late:
        def __del__(self):
            print("taken apart")
    global late
    late = Late()
    threading.Thread(target=never.wait, daemon=True).start()
    """
    done = run(left, 60)
    assert (done.returncode, done.stderr) == (17, "")
    assert done.stdout == "main first in, last out\n"
