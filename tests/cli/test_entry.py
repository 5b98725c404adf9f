"""The first lines of the program."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from plaunch.cli import entry
from plaunch.cli.entry import entry_point

from helpers.programs import run_python


@pytest.fixture(autouse=True)
def restored_environment(monkeypatch):
    """The entry point takes its process for plaunch's own, which the tests' is not.

    It would end it on the spot; it ignores Ctrl-C in the end.
    """
    monkeypatch.setenv("PLAUNCH_LAUNCHER", "")
    monkeypatch.setattr(entry, "_may_be_held", lambda: False)
    monkeypatch.setattr(entry, "end_at_once", sys.exit)
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


def test_the_exit_code_is_mains(monkeypatch):
    monkeypatch.setattr("plaunch.cli.program.main", lambda: 17)
    with pytest.raises(SystemExit) as caught:
        entry_point()
    assert caught.value.code == 17


def test_an_interrupt_during_the_imports_is_one_line(monkeypatch, capsys):
    class Interrupting:
        def find_spec(self, name, path=None, target=None):
            if name == "plaunch.cli.program":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "plaunch.cli.program", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as caught:
        entry_point()
    assert caught.value.code == 130
    assert capsys.readouterr().err == "plaunch: interrupted while no worker was running\n"


def test_with_torch_loaded_the_process_ends_in_order_but_at_once(tmp_path):
    """What is left to do is done: threads, exit functions, buffers; torch is not unloaded."""
    code = (
        "import atexit, sys, threading, time, types\n"
        "sys.modules['torch'] = types.ModuleType('torch')\n"
        "class Late:\n"
        "    def __del__(self): print('unloaded')\n"
        "sys.modules['torch'].late = Late()\n"
        "import plaunch.cli.program, plaunch.cli.entry\n"
        "def main():\n"
        "    atexit.register(print, 'at exit')\n"
        "    threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        "    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "    print('main', end=' ')\n"
        "    return 17\n"
        "plaunch.cli.program.main = main\n"
        "plaunch.cli.entry.entry_point()\n"
    )
    done = run_python("-c", code)
    assert done.returncode == 17, done.stderr
    assert done.stdout.split() == ["main", "thread", "at", "exit"]


LEFT = """\
import atexit, sys, plaunch.cli.program, plaunch.cli.entry
class Late:
    def __del__(self): print("taken apart")
late = Late()
def main():
    atexit.register(print, "at exit")
    print("main", end=" ")
    return 17
plaunch.cli.program.main = main
plaunch.cli.entry.entry_point()
"""


def end(*options, stdout=subprocess.PIPE):
    pipes = {"capture_output": False, "stdout": stdout, "stderr": subprocess.PIPE}
    return run_python(*options, "-c", LEFT, **pipes)


def test_exit_functions_run_and_buffers_are_written_but_nothing_is_taken_apart():
    done = end()
    assert (done.returncode, done.stderr) == (17, "")
    assert done.stdout == "main at exit\n"


def test_with_an_interactive_interpreter_the_process_stays():
    done = end("-i")
    assert "taken apart" in done.stdout


def test_a_stdout_that_cannot_be_flushed_is_told_by_the_interpreter():
    with open("/dev/full", "w") as full:
        done = end(stdout=full)
    assert done.returncode == 120
    assert "No space left on device" in done.stderr
