"""Where real workers are whose program has ended, and that do not exit."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from plaunch_hang.stacks.exit_places import find_exit_places, is_exiting, runs_python
from plaunch_hang.stacks.stack import ProcessStacks, StackFrame, ThreadStack

from helpers.programs import running_python
from helpers.waiting import wait_until

pytestmark = pytest.mark.usefixtures("readable_stacks")

THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
RAISE = "raise RuntimeError('bad batch')\n"
CATCH = """\
import time, traceback
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
"""
# The name, what a worker runs, and where it is then.
EXITS = {
    "thread": (f"{THREAD}{RAISE}", r"threading\._shutdown"),
    "atexit": (
        f"import atexit, time\n@atexit.register\ndef flush():\n    time.sleep(600)\n{RAISE}",
        r"flush \(worker\.py:4\)",
    ),
    "child": (
        "import multiprocessing, time\n"
        "context = multiprocessing.get_context('fork')\n"
        f"context.Process(target=time.sleep, args=(600,)).start()\n{RAISE}",
        r"multiprocessing\.util\._exit_function",
    ),
    "destructor": (
        "import time\nclass Group:\n    def __del__(self, sleep=time.sleep):\n"
        f"        sleep(600)\ngroup = Group()\n{RAISE}",
        r"__del__ \(worker\.py:4\)|Group\.__del__ \(worker\.py:4\)",
    ),
    "excepthook": (
        "import sys, time\ndef report(*_):\n    print('Traceback', file=sys.stderr)\n"
        f"    time.sleep(600)\nsys.excepthook = report\n{RAISE}",
        r"report \(worker\.py:4\)",
    ),
    "chained": (
        f"{THREAD}try:\n    1 / 0\nexcept ZeroDivisionError as error:\n"
        "    raise RuntimeError('bad batch') from error\n",
        r"threading\._shutdown",
    ),
    "destructor of a module": (
        "import sys, time\nclass Group:\n    def __del__(self, sleep=time.sleep):\n"
        f"        sleep(600)\nsys.group = Group()\n{RAISE}",
        r"(Group\.)?__del__ \(worker\.py:4\)",
    ),
    "syntax error": (f"{THREAD}exec('a b')\n", r"threading\._shutdown"),
}
RUNS = {
    "loop": "while True:\n    time.sleep(0.01)\n",
    "wait": "time.sleep(600)\n",
    "finally": "try:\n    1 / 0\nfinally:\n    time.sleep(600)\n",
    "module": "import runpy\nrunpy.run_path('train.py', run_name='__main__')\n",
    "handler": (
        "import signal, os\nsignal.signal(signal.SIGUSR1, lambda *_: time.sleep(600))\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
    ),
}


@pytest.fixture
def look(tmp_path):
    """Start a worker, and return its place once `is_there` accepts it."""

    def look(text, is_there):
        (tmp_path / "worker.py").write_text(text)
        (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n")
        found = []

        def has_come():
            found[:] = [find_exit_places({0: worker.pid})[0]]
            return is_there(found[0])

        with running_python("worker.py", cwd=tmp_path, stderr=subprocess.DEVNULL) as worker:
            wait_until(has_come, lambda: f"there: {found}")
        return found[0]

    return look


@pytest.mark.parametrize("name", EXITS)
def test_a_worker_whose_program_has_ended_with_an_exception(look, name):
    text, place = EXITS[name]
    found = look(text, lambda found: found.is_exiting and re.match(place, found.place))
    assert found.has_raised is True
    assert found.reason == ""


def test_a_worker_whose_program_has_caught_its_exception(look):
    text = (
        f"import traceback\ntry:\n    1 / 0\nexcept Exception:\n    traceback.print_exc()\n{THREAD}"
    )
    found = look(text, lambda found: found.is_exiting)
    assert found.has_raised is False


@pytest.mark.parametrize("owner", ["group", "sys.group"])
def test_in_the_last_destructors_a_caught_exception_is_still_none_of_the_program(look, owner):
    text = (
        "import sys, time, traceback\ntry:\n    1 / 0\nexcept Exception:\n"
        "    traceback.print_exc()\n"
        "class Group:\n    def __del__(self, sleep=time.sleep):\n        sleep(600)\n"
        f"{owner} = Group()\n"
    )
    found = look(text, lambda found: found.is_exiting and "__del__" in found.place)
    assert found.has_raised is False


def test_a_worker_at_a_prompt_after_its_exception_is_held(look):
    text = f"""\
import os, pdb, sys, time
read, write = os.pipe()
os.dup2(read, 0)
sys.excepthook = lambda kind, error, traceback: pdb.post_mortem(traceback)
{RAISE}"""
    found = look(text, lambda found: found.hold and found.is_exiting)
    assert found.hold == "at a prompt of pdb"
    assert found.has_raised is True


@pytest.mark.parametrize("name", RUNS)
def test_a_worker_whose_program_runs(look, name):
    text = f"{CATCH}{RUNS[name]}"
    found = look(text, lambda found: re.search(r"\.py:\d+\)", found.place))
    assert found.is_exiting is False
    assert not found.has_raised


def test_threads_that_the_exit_waits_for_are_named(look):
    text = (
        "import threading, time\ndef pump():\n    time.sleep(600)\n"
        f"for _ in range(3):\n    threading.Thread(target=pump, name='pump').start()\n{RAISE}"
    )
    found = look(text, lambda found: found.place.endswith("more)"))
    thread = "thread pump is in pump (worker.py:3)"
    assert found.place == f"threading._shutdown ({thread}, {thread} and 1 more)"


def test_without_a_stack_the_reason_is_known_and_the_exception_may_be():
    stacks = {3: ProcessStacks(7, reason="py-spy is not installed")}
    (found,) = find_exit_places(
        {3: 7}, lambda pids: stacks, lambda pid: True, lambda pid: True
    ).values()
    assert found == (None, True, "", "py-spy is not installed", "")


def frames(*functions):
    """Frames of functions, innermost first; a name with a colon has its file."""
    python = "/usr/lib/python3.11/"
    found = []
    for text in functions:
        function, _, file = text.partition(":")
        found.append(StackFrame(function, f"{python}{file}" if file else "/home/me/train.py", 3))
    return found


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ([], True),
        (["_shutdown:threading.py"], True),
        (["_shutdown", "main", "<module>"], False),  # a function of the user
        (["poll:multiprocessing/popen_fork.py", "_exit_function:multiprocessing/util.py"], True),
        # A function worker, spawned and forked.
        (
            [
                "_shutdown:threading.py",
                "BaseProcess._bootstrap:multiprocessing/process.py",
                "spawn_main:multiprocessing/spawn.py",
                "<module>",
            ],
            True,
        ),
        (["main", "BaseProcess._bootstrap:multiprocessing/process.py", "main", "<module>"], False),
        (["flush"], True),
        (["main", "<module>"], False),
        (["import_it:importlib/__init__.py", "<module>"], False),
        # Python 3.10 starts `python -m` with a module that is not frozen.
        (["main", "<module>", "_run_code:runpy.py", "_run_module_as_main:runpy.py"], False),
        (["deeper"] * 500, False),  # the outermost frames are not known
    ],
)
def test_a_stack_shows_whether_the_program_has_ended(stack, expected):
    assert is_exiting(frames(*stack)) is expected


def test_a_program_that_python_looks_for_has_not_ended():
    frozen = StackFrame("_run_module_as_main", "<frozen runpy>", 198)
    assert not is_exiting([*frames("main"), frozen])


def test_the_stack_of_a_greenlet_does_not_show_the_end_of_the_program():
    hub = StackFrame("run", "/site-packages/gevent/hub.py", 641)
    assert not is_exiting([hub])


@pytest.mark.parametrize("functions", [[], ["callback"]])
def test_a_program_that_embeds_python_may_still_run(functions):
    main = ThreadStack(7, "MainThread", tuple(frames(*functions)))
    stacks = {3: ProcessStacks(7, threads=(main,))}
    (found,) = find_exit_places({3: 7}, lambda _: stacks, lambda _: None, lambda _: False).values()
    assert found.is_exiting is None
    assert bool(found.place) is bool(functions)


def test_the_program_of_a_process_is_python():
    assert runs_python(os.getpid())
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            wait_until(lambda: not runs_python(other.pid), lambda: "another program")
        finally:
            other.kill()
