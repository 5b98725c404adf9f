"""`--preload`: workers that are forked after their imports, as users run them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from helpers.processes import is_gone
from helpers.programs import run_python
from helpers.waiting import wait_for_files, wait_until

# Reports how it was started: a fresh interpreter has not imported these modules.
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
def test_invalid_names_start_nothing(plaunch, words, said):
    done = plaunch.run(*words, plaunch.write("train.py", "print('trained')"))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_traceback_is_that_of_a_fresh_worker(plaunch):
    script = plaunch.write("train.py", "def f():\n    raise ValueError('no')\nf()\n")
    fresh, forked = (plaunch.run(*words, script) for words in ([], ["--preload=decimal"]))
    traces = [done.stderr[: done.stderr.index("ValueError: no")] for done in (fresh, forked)]
    assert traces[0] == traces[1]
    assert (fresh.returncode, forked.returncode) == (1, 1)


PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize(
    "words",
    [
        ["forking.py"],
        ["environment.py"],
        ["processes.py"],
        ["reading.py"],
        ["-m", "package", "x"],
        *(["ending.py", way] for way in ("text", "code", "error", "thread", "closed", "fault")),
    ],
    ids=" ".join,
)
def test_a_program_runs_as_when_executed(plaunch, words):
    """Those of tests/e2e/test_drop_in.py that are quick."""
    if not words[0].startswith("-"):
        words = [str(PROGRAMS / words[0]), *words[1:]]
    results = []
    for more in ([], ["--preload=decimal"]):
        environ = {"PYTHONPATH": str(PROGRAMS)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with (
            (PROGRAMS / "reading.txt").open() as stdin,
            plaunch.popen(*more, *words, environ=environ, stdin=stdin, **pipes) as launcher,
        ):
            out, err = launcher.communicate(timeout=60)
        # From Python 3.14 on, a fault shows the stack in C, too, which begins in the fork server.
        err = re.sub(r"Current thread's C stack trace.*\n(  .*\n)*", "", err)
        # It names the thread, too, which is called as the program, or as the worker.
        err = re.sub(r"(Current thread \S+) \[.*\]", r"\1", err)
        # Values that differ: addresses, process ids, durations and times.
        err = re.sub(r"0x[0-9a-f]+|\d+(?=\))|\d[\d.:+-]*", "N", err)
        results.append((launcher.returncode, sorted(out.splitlines()), err))
    fresh, forked = results
    assert forked == fresh
    assert fresh[1] or fresh[2]


# Exits at once except in the last attempt; some attempts print the launcher's resources.
ENDING = """
import sys
early = "decimal" in sys.modules
import contextlib, json, os
attempt, (last, looks) = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), map(int, sys.argv[1:])
def seen(pid):
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    children = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
            children += map(int, file.read().split())
    return {"memory": int(status["RssAnon"].split()[0]), "name": status["Name"].strip(),
            "children": children, "fds": os.listdir(f"/proc/{pid}/fd")}
if last // 5 <= attempt < last // 5 + looks or attempt > last - looks:
    launcher = seen(os.getppid())
    others = []
    for pid in set(launcher["children"]) - {os.getpid()}:
        with contextlib.suppress(OSError, KeyError):  # unless it has ended
            others.append(seen(pid))
    print(json.dumps({"early": early, "launcher": launcher, "others": others}), flush=True)
if attempt < last:
    os._exit(1)
"""
LOOKS = 10


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("restarts", "words"),
    [
        (100, ["--preload=decimal"]),
        pytest.param(1000, ["--preload=decimal"], marks=pytest.mark.exhaustive),
        pytest.param(1000, [], marks=pytest.mark.exhaustive),
    ],
)
def test_restarts_leave_nothing(plaunch, restarts, words):
    script = plaunch.write("ending.py", ENDING)
    options = [*words, f"--max-restarts={restarts}", "--crash-loop=off", script]
    options += [str(restarts), str(LOOKS)]
    with plaunch.start(*options, LOGLEVEL="ERROR") as launcher:
        out, err = launcher.communicate(timeout=800)
    assert (launcher.returncode, err) == (0, "")
    looks = [json.loads(line) for line in out.splitlines()]
    assert [look["early"] for look in looks] == [bool(words)] * 2 * LOOKS
    early, late = looks[:LOOKS], looks[LOOKS:]
    for name in ("children", "fds"):
        before, after = (min(count(name, look) for look in part) for part in (early, late))
        # A leak of one per restart would be eight times this.
        assert after <= before + restarts // 10, (name, before, after)
    if restarts == 1000:
        names = {one["name"] for look in looks for one in everybody(look)}
        grown = {
            name: max(memory_of(name, look) for look in late)
            - max(memory_of(name, look) for look in early)
            for name in names
        }
        # The C library's cache of freed memory grows for a while, then stays constant.
        assert max(grown.values()) < 1024, grown


def everybody(look):
    """The launcher and its children."""
    return [look["launcher"], *look["others"]]


def count(what, look):
    """How many of them all of these have, zombies included."""
    return sum(len(one[what]) for one in everybody(look))


def memory_of(name, look):
    """The private memory in KiB of the process of this name."""
    return max((one["memory"] for one in everybody(look) if one["name"] == name), default=0)


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
def test_functions_return_the_same(plaunch, method):
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
