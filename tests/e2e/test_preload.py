"""`--preload`: workers that are forked after their imports, as users run them."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from helpers.processes import is_gone
from helpers.programs import run_python
from helpers.waiting import wait_for_files, wait_until

# Says how it was started: a fresh interpreter has imported nothing of the kind by then.
ASK = "import sys; early = 'decimal' in sys.modules\n"


def events_of(plaunch, name):
    lines = (plaunch.folder / "events.jsonl").read_text().splitlines()
    events = map(json.loads, lines)
    return [event for event in events if event["name"] == name]


EVENTS = ("--event-log-handler=jsonl", "--event-conf=jsonl.path={}/events.jsonl")


def recording(plaunch):
    return [word.format(plaunch.folder) for word in EVENTS]


def test_workers_of_every_round_are_forked(plaunch):
    script = plaunch.write(
        "train.py",
        ASK
        + "import os\nrank, attempt = map(os.environ.get, ('RANK', 'TORCHELASTIC_RESTART_COUNT'))\n"
        "print(rank, attempt, early, flush=True)\n"
        "if attempt == '0': sys.exit(rank == '1')\n",
    )
    words = ["--nproc-per-node=2", "--max-restarts=1", "--preload=decimal", *recording(plaunch)]
    done = plaunch.run(*words, script)
    assert done.returncode == 0, done.stderr
    assert {"1 0 True", "0 1 True", "1 1 True"} <= set(done.stdout.splitlines())
    assert all(
        event["metadata"]["forked"] for event in events_of(plaunch, "plaunch.worker.started")
    )
    (preloaded,) = events_of(plaunch, "plaunch.preload.completed")
    assert preloaded["metadata"]["modules"] == "decimal"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--preload=nosuch"], "--preload=nosuch: workers are started afresh: nosuch cannot be"),
        (["--preload=train"], "train is the script itself"),
        (["--preload=ends"], "ends cannot be imported: SystemExit: 3"),
        (["--preload=loud"], "the modules wrote 'hello' while they were imported"),
        (["--preload=hangs"], "did not import its modules within 1 s"),
        (["--preload=runs"], "1 thread(s) run"),
        (["--no-python", "--preload=decimal"], "and not Python"),
    ],
)
def test_it_never_makes_a_job_fail(plaunch, words, said):
    for name, source in {
        "ends": "import sys; sys.exit(3)",
        "loud": "print('hello')",
        "hangs": "import time; time.sleep(60)",
        "runs": "import threading, time; threading.Thread(target=time.sleep, args=(9,)).start()",
    }.items():
        plaunch.write(f"{name}.py", source)
    script = plaunch.write("train.py", "print('trained')")
    program = ["echo", "trained"] if "--no-python" in words else [script]
    done = plaunch.run(*words, *program, PLAUNCH_PRELOAD_TIMEOUT="1")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    (line,) = done.stderr.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--preload=torch,,numpy"], "--preload names the module '' in 'torch,,numpy'"),
        (["--preload="], "--preload names no module"),
        (["--preload=my-module"], "names the module 'my-module'"),
    ],
)
def test_names_that_are_none_start_nothing(plaunch, words, said):
    done = plaunch.run(*words, plaunch.write("train.py", "print('trained')"))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_traceback_is_that_of_a_fresh_worker(plaunch):
    script = plaunch.write("train.py", "def f():\n    raise ValueError('no')\nf()\n")
    fresh, forked = (plaunch.run(*words, script) for words in ([], ["--preload=decimal"]))
    traces = [done.stderr[: done.stderr.index("ValueError: no")] for done in (fresh, forked)]
    assert traces[0] == traces[1]
    assert (fresh.returncode, forked.returncode) == (1, 1)


LEAVING = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
children = [subprocess.Popen(["sleep", "600"], start_new_session=True)]
if not (child := os.fork()):
    os.setsid()
    time.sleep(600)
pids = [os.getpid(), children[0].pid, child]
open("pids.new", "w").write(" ".join(map(str, pids)))
os.rename("pids.new", "pids")
time.sleep(600)
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL], ids=lambda signum: signum.name)
def test_nothing_outlives_the_launcher(plaunch, signum):
    script = plaunch.write("leaving.py", LEAVING)
    with plaunch.start("--preload=decimal", "--shutdown-timeout=0.5", script) as launcher:
        pids = plaunch.folder / "pids"
        wait_for_files(pids)
        left = [int(pid) for pid in pids.read_text().split()]
        with open(f"/proc/{launcher.pid}/task/{launcher.pid}/children") as file:
            left += map(int, file.read().split())
        launcher.send_signal(signum)
        launcher.communicate(timeout=60)
    wait_until(lambda: all(map(is_gone, left)), lambda: [p for p in left if not is_gone(p)])


FUNCTIONS = """
import multiprocessing, os, sys
from plaunch import LaunchConfig, elastic_launch
from plaunch.process import ChildFailedError
class Shape:
    def __init__(self, size):
        self.size = size
def seen(shape):
    with open("/proc/self/comm") as file:
        name = file.read().strip()
    own = shape.size, __name__, multiprocessing.get_start_method(), os.environ["RANK"]
    return own, name == f"function:{os.environ['LOCAL_RANK']}" and "decimal" in sys.modules
def fails(shape):
    raise ValueError(f"no {shape.size}")
if __name__ == "__main__":
    for options in {}, {"preload": "decimal"}:
        config = LaunchConfig(1, 1, 2, start_method=sys.argv[1], max_restarts=0, options=options)
        values = elastic_launch(config, seen)(Shape(3))
        print([value[0] for value in values.values()])
        print([value[1] for value in values.values()])
        try:
            elastic_launch(config, fails)(Shape(3))
        except ChildFailedError as error:
            _, failure = error.get_first_failure()
            print(failure.exitcode, failure.message["message"])
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_functions_give_the_same(plaunch, method):
    script = plaunch.write("launching.py", FUNCTIONS)
    done = run_python(script, method, cwd=plaunch.folder, env=plaunch.environ)
    lines = done.stdout.splitlines()
    assert len(lines) == 6, done.stderr
    assert (lines[0], lines[2]) == (lines[3], lines[5])
    assert f"'{method}', '0'" in lines[0]
    assert (lines[1], lines[4]) == ("[False, False]", str([method != "fork"] * 2))


def test_a_stopped_launch_does_not_wait_for_the_imports(plaunch):
    plaunch.write("hangs.py", "open('importing', 'w'); import time; time.sleep(600)")
    script = plaunch.write("train.py", "print('trained')")
    with plaunch.start("--preload=hangs", script) as launcher:
        wait_for_files(plaunch.folder / "importing")
        begun = time.monotonic()
        launcher.terminate()
        launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + signal.SIGTERM
    assert time.monotonic() - begun < 30
    assert not os.path.exists(plaunch.folder / "trained")
