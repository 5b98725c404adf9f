"""The end of the process; `tests/e2e/test_evil_plugins.py` has whole launches."""

from __future__ import annotations

import pytest

from helpers.programs import run_python

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


def run(left, patience=60):
    done = run_python("-c", PROGRAM.format(left=left, patience=patience))
    assert done.returncode == 17
    return done.stdout, done.stderr


IN_ORDER = "main first in, last out\n"
# One that comes back from C++ code while the interpreter is taken apart aborts the process.
TAKEN_APART = """
    class Late:
        def __del__(self):
            print("taken apart")
    global late
    late = Late()
    threading.Thread(target=never.wait, daemon=True).start()
"""
DONE = {
    "nothing": "pass",
    "a daemon": "threading.Thread(target=never.wait, daemon=True).start()",
    "a thread that ends": "threading.Thread(target=time.sleep, args=(0.1,)).start()",
    "a pool": "global pool; pool = concurrent.futures.ThreadPoolExecutor(1); pool.submit(int)",
    "the interpreter, which is not taken apart": TAKEN_APART,
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
            "not waited for any longer: thread 'lasting' (in wait, ",
            IN_ORDER,
        ),
        (
            "atexit.register(never.wait)",
            0.01,
            "not waited for any longer: a function at exit (in wait, ",
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
