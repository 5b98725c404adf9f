"""The launcher's priority, which nothing that it starts inherits."""

import os
import subprocess
import sys

import pytest

PROGRAM = """\
import os, subprocess, sys, threading
from plaunch.process.kernel.priority import raise_priority

def read():
    return os.getpriority(os.PRIO_PROCESS, 0)

os.nice(int(sys.argv[1]))
is_raised = raise_priority()
child = subprocess.run([sys.executable, "-c", "import os; print(os.nice(0))"], capture_output=True)
seen = []
thread = threading.Thread(target=lambda: seen.append(read()))
thread.start()
thread.join()
print(is_raised, read(), int(child.stdout), *seen)
"""
SCRIPT = "import os; print('worker', os.nice(0), flush=True)"


def run(*prefix, nice=0):
    command = [*prefix, sys.executable, "-c", PROGRAM, str(nice)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False
    ).stdout.split()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise its priority")


@needs_root
def test_what_is_started_has_the_usual_priority():
    assert run() == ["True", "-20", "0", "0"]


def test_a_priority_that_the_user_has_set_stays():
    assert run(nice=5) == ["False", "5", "5", "5"]


@needs_root
def test_who_may_not_raise_it_goes_on_without():
    prefix = ("setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice")
    assert run(*prefix) == ["False", "0", "0", "0"]


@pytest.mark.parametrize("nice", [0, 5])
def test_workers_have_the_priority_that_the_user_gave(tmp_path, nice):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = ["nice", "-n", str(nice), sys.executable, "-m", "plaunch", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert f"worker {nice}" in done.stdout.splitlines(), done.stderr
