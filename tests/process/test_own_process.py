"""What a process changes about itself: its limits and its priority."""

from __future__ import annotations

import subprocess
import sys

import pytest
from plaunch.process.own_process import set_title

from helpers.programs import run_python

LAUNCHER = """
import resource, sys
from plaunch.process import raise_descriptor_limit, start_processes
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
def work():
    import time
    time.sleep(0.3)  # the launcher is told its pid only when it has begun
    return resource.getrlimit(resource.RLIMIT_NOFILE) == (hard // 2, hard)
TEXT = "import resource, time; time.sleep(0.3); print(resource.getrlimit(resource.RLIMIT_NOFILE))"
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
    assert raise_descriptor_limit() == hard
    assert raise_descriptor_limit() == hard  # again
    if sys.argv[1] == "program":
        context = start_processes("w", sys.executable, {0: ("-c", TEXT)})
        context.wait()
        print((hard // 2, hard))
    else:
        context = start_processes("w", work, {0: ()}, start_method=sys.argv[1])
        print(context.wait().return_values)
"""


@pytest.mark.parametrize("kind", ["program", "spawn", "fork", "forkserver"])
def test_workers_get_the_limit_as_it_was(tmp_path, kind):
    script = tmp_path / "launcher.py"
    script.write_text(LAUNCHER)
    said = run_python(script, kind, check=True, cwd=tmp_path).stdout.splitlines()
    if kind == "program":
        worker, expected = said
        assert worker == expected
    else:
        assert said == ["{0: True}"]


PROGRAM = """\
import os, subprocess, sys, threading
from plaunch.process.own_process import raise_priority

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


@pytest.mark.needs("root", "usual niceness")
def test_what_is_started_has_the_usual_priority():
    assert run() == ["True", "-20", "0", "0"]


@pytest.mark.needs("usual niceness")
def test_a_priority_that_the_user_has_set_stays():
    assert run(nice=5) == ["False", "5", "5", "5"]


@pytest.mark.needs("root", "usual niceness")
def test_without_the_capability_the_priority_stays():
    prefix = ("setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice")
    assert run(*prefix) == ["False", "0", "0", "0"]


@pytest.mark.needs("usual niceness")
@pytest.mark.parametrize("nice", [0, 5])
def test_workers_have_the_priority_that_the_user_gave(tmp_path, nice):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = ["nice", "-n", str(nice), sys.executable, "-m", "plaunch", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert f"worker {nice}" in done.stdout.splitlines(), done.stderr


def test_a_forked_process_shows_the_first_title_that_fits():
    code = (
        "from plaunch.process.own_process import set_title\n"
        "print(set_title('x' * 5000, 'short', 'shorter'))\n"
        "print(open('/proc/self/cmdline').read().rstrip(chr(0)))\n"
        "print(set_title('y' * 5000))\n"
    )
    assert run_python("-c", code, check=True).stdout.split() == ["True", "short", "False"]


def test_a_title_is_no_condition():
    assert not set_title("anything", proc="/nonexistent")
