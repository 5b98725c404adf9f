"""Launches with a worker that has raised an exception, or is done, and does not exit."""

from __future__ import annotations

import contextlib
import json
import re
import signal

import pytest

from helpers.nodes import options
from helpers.ports import free_port
from helpers.programs import run_python
from helpers.stacks import readable_stacks  # noqa: F401 - a fixture
from helpers.waiting import wait_until

pytestmark = pytest.mark.usefixtures("readable_stacks")

SOON = "--exception-timeout=1s"
FAILED = re.compile(r"plaunch: rank 1 on \S+ failed after \S+ s: RuntimeError: bad batch (\(.*\))")
WAIT = "    time.sleep(10_000)\n"
RAISE = '    raise RuntimeError("bad batch")\n'
THREAD = "    threading.Thread(target=time.sleep, args=(10_000,)).start()\n"
# What rank 1 does before it raises an exception.
BLOCKS = {
    "thread": THREAD,
    "atexit": "    atexit.register(time.sleep, 10_000)\n",
    "child": "    multiprocessing.Process(target=time.sleep, args=(10_000,)).start()\n",
    "destructor": "    sys.late = Late()\n",
    "chatty thread": "    threading.Thread(target=chat).start()\n",
}
PROGRAM = """\
import atexit, multiprocessing, os, sys, threading, time

class Late:
    def __del__(self, sleep=time.sleep):
        sleep(10_000)

def chat():
    threading.main_thread().join()  # its traceback has ended, whose lines are written one by one
    while True:
        print("a line of the thread", file=sys.stderr)
        time.sleep(0.02)

def main():
    if os.environ["RANK"] == "0":
    {WAIT}{BLOCK}{RAISE}
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def write(plaunch):
    """Write a program whose rank 1 raises an exception and does not exit."""

    def write(block="thread"):
        text = PROGRAM.replace("{WAIT}", WAIT).replace("{BLOCK}", BLOCKS[block])
        plaunch.write("train.py", text.replace("{RAISE}", RAISE))
        return "train.py"

    return write


@pytest.mark.parametrize("block", BLOCKS)
def test_with_a_timeout_it_fails_with_its_exception(plaunch, write, block):
    done = plaunch.run("--nproc-per-node=2", SOON, write(block))
    assert done.returncode == 1, done.stderr
    assert FAILED.search(done.stderr), done.stderr
    assert "rank 1 has not exited" in done.stderr
    assert "stopped because of it: rank 0 (SIGTERM)" in done.stderr


@pytest.mark.parametrize("streams", ["--redirects=3", "--tee=3", "--log-rotate=1M:2"])
def test_wherever_its_stderr_goes(plaunch, write, streams):
    extra = ["--tee=2"] if "rotate" in streams else []
    done = plaunch.run("--nproc-per-node=2", SOON, "--log-dir=logs", streams, *extra, write())
    assert done.returncode == 1, done.stderr
    assert FAILED.search(done.stderr), done.stderr


def test_if_the_users_shell_redirects_it(plaunch, write):
    with (plaunch.folder / "all").open("w") as file:
        argv = ("--nproc-per-node=2", SOON, write("child"))
        with plaunch.popen(*argv, stdout=file, stderr=file) as launch:
            assert launch.wait(120) == 1
    assert FAILED.search((plaunch.folder / "all").read_text())


def test_its_failure_is_in_the_events_and_restarts_follow(plaunch, write):
    done = plaunch.run(
        "--nproc-per-node=2", SOON, "--max-restarts=1", "--log-dir=logs",
        "--event-log-handler=jsonl", write(),
    )  # fmt: skip
    assert done.returncode == 1
    assert len(re.findall("rank 1 has not exited .* and counts as failed", done.stderr)) == 2
    (path,) = plaunch.folder.glob("logs/**/*.jsonl")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    failures = [one["metadata"] for one in events if one["name"] == "plaunch.failure"]
    assert [(one["global_rank"], one["exit_code"]) for one in failures] == [(1, 1), (1, 1)]
    assert all(one["headline"].startswith("RuntimeError: bad batch") for one in failures)


@pytest.mark.slow
def test_a_hang_is_reported_as_its_failure(plaunch, write):
    done = plaunch.run("--nproc-per-node=2", "--hang-timeout=8s", "--on-hang=stop", write())
    assert done.returncode == 1, done.stderr
    assert FAILED.search(done.stderr), done.stderr


@pytest.mark.slow
def test_without_a_timeout_it_is_reported_and_ctrl_c_keeps_the_cause(plaunch, write):
    with plaunch.start("--nproc-per-node=2", write()) as launch:
        lines = []
        for line in launch.stderr:
            lines.append(line)
            if "has not exited" in line:
                break
        launch.send_signal(signal.SIGINT)
        rest = launch.stderr.read()
        assert launch.wait(120) == 1
    assert re.fullmatch(
        r"plaunch: rank 1 raised RuntimeError: bad batch \(train\.py:\d+\) \d+ s ago and has not "
        r"exited; it is in threading\._shutdown; the job waits for it \(--exception-timeout ends "
        r"the wait\)\n",
        lines[-1],
    )
    assert "SIGINT received" in rest
    assert FAILED.search(rest), rest


@pytest.mark.slow
def test_a_rank_that_is_later_than_the_others_is_named(plaunch):
    plaunch.write(
        "train.py",
        "import os, threading, time\nif os.environ['RANK'] == '2':\n"
        "    threading.Thread(target=time.sleep, args=(13,)).start()\n",
    )
    done = plaunch.run("--nproc-per-node=3", "train.py")
    assert done.returncode == 0
    late = r"plaunch: rank 2 has not exited, 1\d s after the others; it is in threading\._shutdown"
    assert len(re.findall(late, done.stderr)) == 1


@pytest.mark.slow
def test_the_only_rank_of_a_job_is_named(plaunch):
    plaunch.write(
        "train.py",
        "import threading, time\ndef pump():\n    time.sleep(10_000)\n"
        "threading.Thread(target=pump, name='pump').start()\n",
    )
    with plaunch.start("--nproc-per-node=1", "train.py") as launch:
        line = next((line for line in launch.stderr if "has not exited" in line), "")
        launch.send_signal(signal.SIGINT)
        launch.stderr.read()
    assert re.fullmatch(
        r"plaunch: rank 0 has not exited, \d+ s after the end of its program; it is in "
        r"threading\._shutdown \(thread pump is in pump \(train\.py:3\)\)\n",
        line,
    )


@pytest.mark.slow
def test_the_only_rank_of_a_node_is_named_if_it_is_later_than_the_other_nodes(plaunch):
    plaunch.write(
        "train.py",
        "import os, time\ndef save():\n    while not os.path.exists('saved'):\n"
        "        time.sleep(0.1)\nif os.environ['RANK'] == '1':\n    save()\n",
    )
    port = free_port()
    late_line = re.compile(
        r"plaunch: rank 1 has not exited, \d+ s after the others; it is in save \(train"
    )
    logs = [plaunch.folder / name for name in ("first", "second")]
    with contextlib.ExitStack() as stack:
        nodes = []
        for log in logs:
            argv = (*options(f"127.0.0.1:{port}", 2), "--nproc-per-node=1", "train.py")
            file = stack.enter_context(log.open("w"))
            nodes.append(stack.enter_context(plaunch.popen(*argv, stderr=file)))

        def count():
            return [len(late_line.findall(log.read_text())) for log in logs]

        try:
            wait_until(lambda: sum(count()), lambda: "a line about the late rank")
        finally:
            plaunch.write("saved", "")
        assert [node.wait(120) for node in nodes] == [0, 0]
    assert sum(count()) == 1


def test_other_nodes_report_the_same_failure(plaunch, write):
    script, port = write(), free_port()
    nodes = [
        plaunch.start(*options(f"127.0.0.1:{port}", 2), SOON, "--nproc-per-node=1", script)
        for _ in range(2)
    ]
    with nodes[0] as first, nodes[1] as second:
        for node in (first, second):
            _, err = node.communicate(timeout=120)
            assert node.returncode == 1, err
            assert FAILED.search(err), err


# --- what must not be taken for an exception ------------------------------------------------------


GOES_ON = """\
import logging, multiprocessing, subprocess, sys, threading, time, traceback, warnings

def crash():
    1 / 0

def run_program():
    subprocess.run([sys.executable, "-c", "1 / 0"])

for report in (
    traceback.print_exc,
    lambda: logging.exception("step failed"),
    lambda: warnings.warn("step failed"),
    lambda: threading.Thread(target=crash).start(),
    lambda: multiprocessing.get_context("fork").Process(target=crash).start(),
    run_program,
):
    try:
        crash()
    except ZeroDivisionError:
        report()
    time.sleep(1)
"""


def test_a_program_that_goes_on_has_not_failed(plaunch):
    plaunch.write("train.py", GOES_ON)
    done = plaunch.run("--nproc-per-node=1", SOON, "train.py")
    assert done.returncode == 0, done.stderr
    assert "plaunch:" not in done.stderr


def test_a_program_that_ends_after_it_has_caught_an_exception_has_not_failed(plaunch):
    plaunch.write(
        "train.py",
        "import threading, time, traceback\ntry:\n    1 / 0\nexcept Exception:\n"
        "    traceback.print_exc()\nthreading.Thread(target=time.sleep, args=(3,)).start()\n",
    )
    done = plaunch.run("--nproc-per-node=1", SOON, "train.py")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_slow_destructor_after_a_caught_exception_is_no_failure(plaunch):
    plaunch.write(
        "train.py",
        "import sys, time, traceback\nclass Late:\n    def __del__(self, sleep=time.sleep):\n"
        "        sleep(4)\ntry:\n    1 / 0\nexcept Exception:\n    traceback.print_exc()\n"
        "sys.late = Late()\n",
    )
    done = plaunch.run("--nproc-per-node=1", SOON, "train.py")
    assert done.returncode == 0, done.stderr


# --- functions, and torch -------------------------------------------------------------------------


FUNCTION = """\
import os, sys, threading, time
from plaunch import LaunchConfig, elastic_launch, record

@record
def main():
    if os.environ["RANK"] == "0":
    {WAIT}{BLOCK}{RAISE}
if __name__ == "__main__":
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, start_method=sys.argv[1], max_restarts=0,
        options={"exception_timeout": 1},
    )
    try:
        elastic_launch(config, main)()
    except Exception as error:
        print(type(error).__name__, error.exit_code, error.get_first_failure()[1].headline)
"""
DIRECT = """\
import threading, time
from plaunch.process import ContextComponents, ExitRules, start_processes
from plaunch_logs_default import DefaultLogsSpecs

def main(rank):
    if rank == 0:
    {WAIT}{BLOCK}{RAISE}
if __name__ == "__main__":
    context = start_processes(
        "trainer", main, {0: (0,), 1: (1,)}, {0: {}, 1: {}}, DefaultLogsSpecs(),
        components=ContextComponents(exit_rules=ExitRules(1.0)),
    )
    for rank, failure in context.wait().failures.items():
        print(rank, failure.exitcode, failure.headline)
"""


def _program(text, block="thread"):
    text = text.replace("{WAIT}", WAIT).replace("{BLOCK}", BLOCKS[block])
    return text.replace("{RAISE}", RAISE)


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_function(plaunch, method):
    plaunch.write("launch.py", _program(FUNCTION))
    done = run_python("launch.py", method, cwd=plaunch.folder, env=plaunch.environ)
    assert done.stdout.splitlines()[-1:] == [
        "ChildFailedError 1 RuntimeError: bad batch (launch.py:9)"
    ], done.stderr


def test_a_function_of_a_context_without_an_agent(plaunch):
    plaunch.write("direct.py", _program(DIRECT))
    done = run_python("direct.py", cwd=plaunch.folder, env=plaunch.environ)
    assert done.stdout.splitlines() == ["1 1 RuntimeError: bad batch (direct.py:9)"], done.stderr
    assert "local rank 1 has not exited" in done.stderr


GLOO = """\
import atexit, os, time, torch.distributed as dist
dist.init_process_group("gloo")
def close():
    dist.barrier()
    dist.destroy_process_group()
atexit.register(close)
if os.environ["RANK"] == "0":
    time.sleep(10_000)
raise RuntimeError("bad batch")
"""
LOADER = """\
import os, threading, time
from torch.utils.data import DataLoader
def main():
    batches = iter(DataLoader(list(range(64)), num_workers=1, persistent_workers=True))
    next(batches)
    if os.environ["RANK"] == "0":
        time.sleep(10_000)
    threading.Thread(target=time.sleep, args=(10_000,)).start()
    raise RuntimeError("bad batch")
if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("text", [GLOO, LOADER], ids=["gloo", "loader"])
def test_with_torch(plaunch, text):
    plaunch.write("train.py", text)
    done = plaunch.run("--nproc-per-node=2", SOON, "train.py")
    assert done.returncode == 1, done.stderr
    assert FAILED.search(done.stderr), done.stderr
