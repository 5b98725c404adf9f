"""Jobs that hang, and jobs that only appear to, with `--hang-timeout`."""

from __future__ import annotations

import json
import re
import signal
import urllib.request

import pytest

from helpers.nodes import options
from helpers.ports import free_port
from helpers.processes import is_gone
from helpers.stacks import readable_stacks  # noqa: F401 - a fixture
from helpers.waiting import wait_until

pytestmark = pytest.mark.usefixtures("readable_stacks")

TIMEOUT = "--hang-timeout=2s"

# Rank 2 gets no batch; the others wait for it at a fifo, as in a collective operation.
HANGING = """\
import os, sys, time
from pathlib import Path

def load_batch(step):
    if os.environ["RANK"] == "2" and step == 3 and is_bad:
        time.sleep(10_000)

def all_reduce(step):
    while is_bad and step == 3:
        time.sleep(10_000)

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
is_bad = attempt == "0" or "ever" in sys.argv
Path(f"up.{attempt}.{os.environ['RANK']}").write_text(str(os.getpid()))
for step in range(4):
    load_batch(step)
    all_reduce(step)
"""

LINES = [
    r"1 rank: 2 load_batch \(train\.py:6\)",
    r"3 ranks: 0-1, 3 all_reduce \(train\.py:10\)",
]
OTHERS = f"  where the others were:\\n    {LINES[1]}\\n"


@pytest.fixture(autouse=True)
def _loud(loud):
    """Show the log lines of launches."""


def test_a_hanging_job_ends_with_the_place(plaunch):
    script = plaunch.write("train.py", HANGING)
    done = plaunch.run("--nproc-per-node=4", TIMEOUT, "--on-hang=stop", "--log-dir=logs", script)
    assert done.returncode == 116, done.stderr
    assert "rank 2 on " in done.stderr
    assert ", stopped, because the job hung, " in done.stderr
    where = rf"\(--hang-timeout\): {LINES[0]}\n{OTHERS}    whole stacks: (.+)\n"
    found = re.search(where, done.stderr)
    assert found, done.stderr
    assert "load_batch" in (plaunch.folder / found[1] / "rank_2.txt").read_text()


def test_it_continues_after_a_restart(plaunch):
    script = plaunch.write("train.py", HANGING)
    options = ["--nproc-per-node=4", TIMEOUT, "--on-hang=restart", "--max-restarts=0,hang:1"]
    done = plaunch.run(*options, script)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"{LINES[1]}\n.*{LINES[0]}; restart 1 of 1", done.stderr)
    again = plaunch.run(*options, script, "ever")
    assert again.returncode == 116, again.stderr


def test_a_hang_may_only_be_reported(plaunch):
    script = plaunch.write("train.py", HANGING)
    with plaunch.start("--nproc-per-node=4", TIMEOUT, script) as process:
        told = ""
        while not re.search(LINES[1], told):
            told += process.stderr.readline()
        pids = [int((plaunch.folder / f"up.0.{rank}").read_text()) for rank in range(4)]
        assert not any(map(is_gone, pids))
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert re.search(rf"has moved for \d.*:\n.*{LINES[0]}\n.*{LINES[1]}\n$", told)


# --- several nodes --------------------------------------------------------------------------------


@pytest.fixture
def run_nodes(agents, plaunch, endpoint_of):
    """Run two launchers with two workers each and their own options; return their output."""

    def call(*words, nodes=((), ()), script=HANGING, args=(), codes=(116, 116)):
        path = plaunch.write("train.py", script)
        common = options(endpoint_of("c10d"), "2", "--nproc-per-node=2", *words)
        started = [
            agents.launch([*common, *own, f"--node-rank={n}", path, *args], f"node{n}", {})
            for n, own in enumerate(nodes)
        ]
        found = [node.exit_code() for node in started]
        assert found == list(codes), [node.stderr for node in started]
        return [node.stderr for node in started]

    return call


def test_a_hanging_job_of_two_nodes_ends_with_the_place(run_nodes, plaunch):
    shown = run_nodes(TIMEOUT, "--on-hang=stop", "--log-dir=logs")
    for text in shown:
        assert "rank 2 on " in text
        assert ", stopped, because the job hung, " in text
        where = rf"moved for \d.* \(--hang-timeout\): {LINES[0]}\n{OTHERS}"
        assert re.search(where + r"    whole stacks on \S+: .+\n", text), text
    assert " logs where all ranks are\n" not in shown[1]
    kept = {path.name for path in (plaunch.folder / "logs").glob("*/hang-*/rank_*")}
    assert kept >= {"rank_2.txt", "rank_3.txt"}  # the other node may be stopped earlier


@pytest.mark.slow
def test_two_nodes_continue_after_a_restart(run_nodes):
    words = (TIMEOUT, "--on-hang=restart", "--max-restarts=0,hang:1")
    shown = run_nodes(*words, codes=(0, 0))
    assert all("restart 1 of 1 for hang\n" in text for text in shown), shown


@pytest.mark.slow
def test_a_node_that_does_not_watch_is_named(agents, plaunch, endpoint_of):
    path = plaunch.write("train.py", HANGING)
    common = options(endpoint_of("c10d"), "2", "--nproc-per-node=2")
    watching, other = (
        agents.launch([*common, *own, f"--node-rank={n}", path], f"node{n}", {})
        for n, own in enumerate([(TIMEOUT, "--on-hang=stop"), ()])
    )
    where = r"no worker of this node has moved for \d.*:\n.*2 ranks: 0-1"
    agents.until(lambda: re.search(where, watching.stderr), "what one node knows")
    text = "--on-hang=stop has no effect: node 1 does not report its workers"
    assert watching.stderr.count(text) == 1
    assert "moved" not in other.stderr


# --- no hangs -------------------------------------------------------------------------------------

# Each takes longer than the timeout.
BUSY = {
    "one line": "def train():\n    n = 0\n"
    "    while time.monotonic() < end: n += sum(range(20_000))\ntrain()",
    "a call that moves": "import json\nwhile time.monotonic() < end: json.dumps(list(range(9999)))",
    "output": "while time.monotonic() < end: print('.', file=sys.stderr, flush=True); wait(0.2)",
    "beats": "from plaunch.worker import heartbeat\n"
    "while time.monotonic() < end: heartbeat(); wait(0.2)",
    "a section": "from plaunch.worker import section\nwith section('save', '1h'): wait(6)",
}
WORKER = "import sys, time\nwait, end = time.sleep, time.monotonic() + 6\n"


@pytest.mark.slow
@pytest.mark.parametrize("what", BUSY)
def test_slow_steps_are_not_hangs(plaunch, what):
    script = plaunch.write("train.py", WORKER + BUSY[what])
    done = plaunch.run(TIMEOUT, "--on-hang=stop", script)
    assert done.returncode == 0, done.stderr
    assert "moved" not in done.stderr


# On one line of the main module, for longer than the timeout.
COMPUTING = """\
import os, subprocess, sys, time
n, rank, end = 0, os.environ["RANK"], time.monotonic() + 5
if rank == "0":
    while time.monotonic() < end: n = n * 3 % 1000003
elif rank == "1":
    while time.monotonic() < end: n += 1; time.sleep(0.01)
else:
    subprocess.run([sys.executable, "-c", f"import time\\nwhile time.monotonic() < {end}: pass"])
"""


@pytest.mark.slow
def test_workers_that_compute_on_one_line_do_not_hang(plaunch):
    script = plaunch.write("train.py", COMPUTING)
    done = plaunch.run("--nproc-per-node=3", TIMEOUT, "--on-hang=stop", script)
    assert done.returncode == 0, done.stderr
    assert "moved" not in done.stderr


def test_a_worker_that_polls_hangs(plaunch):
    """It keeps one CPU busy with system calls."""
    script = plaunch.write("train.py", "import os\nwhile True: os.sched_yield()")
    done = plaunch.run(TIMEOUT, "--on-hang=stop", script)
    assert done.returncode == 116, done.stderr


STEPS = """\
import time
from plaunch.worker import heartbeat
for step in range(10_000):
    heartbeat(step, total=10_000)
    time.sleep(0.05)
"""


def test_steps_are_in_the_status(plaunch):
    pytest.importorskip("prometheus_client")
    port = free_port()
    script = plaunch.write("train.py", STEPS)

    def read(page):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=30) as answer:
                return answer.read().decode()
        except OSError:
            return ""

    def seconds_left():
        told = json.loads(read("status") or '{"workers": []}')
        return [one for one in told["workers"] if one.get("seconds_left")]

    with plaunch.start(TIMEOUT, f"--metrics-port={port}", script) as process:
        (worker,) = wait_until(seconds_left, lambda: read("status"))
        assert 0 < worker["step"] < worker["total_steps"] == 10_000
        assert 'plaunch_worker_step{global_rank="0"} ' in read("metrics")
        process.send_signal(signal.SIGTERM)
        process.communicate()


@pytest.mark.slow
def test_workers_of_a_fork_server_send_heartbeats(plaunch):
    script = plaunch.write("train.py", WORKER + BUSY["beats"])
    words = ("--nproc-per-node=2", "--preload=json", TIMEOUT, "--on-hang=stop")
    done = plaunch.run(*words, script, PLAUNCH_PRELOAD_TIMEOUT="60")
    assert done.returncode == 0, done.stderr
    assert "moved" not in done.stderr
    assert "afresh" not in done.stderr


@pytest.mark.slow
def test_a_job_that_is_suspended_does_not_hang(plaunch):
    """The suspension, longer than the timeout, does not count; the workers hang afterwards."""
    script = plaunch.write("train.py", HANGING)
    with plaunch.start("--nproc-per-node=1", TIMEOUT, "--on-hang=stop", script) as process:
        wait_until((plaunch.folder / "up.0.0").exists, "the worker")
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(Exception, match="timed out"):
            process.wait(5)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 116
    seconds = re.search(r"no worker of the job has moved for ([\d.]+)s", err)
    assert float(seconds[1]) < 3


GLOO = """\
import os, time
import torch
import torch.distributed as dist

def load_batch(step):
    if os.environ["RANK"] == "2" and step == 3:
        time.sleep(10_000)
    return torch.ones(4)

dist.init_process_group("gloo")
for step in range(20):
    dist.all_reduce(load_batch(step))
"""


@pytest.mark.slow
@pytest.mark.heavy
def test_a_collective_operation_that_hangs(plaunch):
    script = plaunch.write("train.py", GLOO)
    # One import of torch instead of four; on two nodes there is one for each worker.
    words = ("--preload=torch", "--hang-timeout=10s", "--on-hang=stop")
    done = plaunch.run("--nproc-per-node=4", *words, script, PLAUNCH_PRELOAD_TIMEOUT="60")
    assert done.returncode == 116, done.stderr
    assert "1 rank: 2 load_batch (train.py:7)\n" in done.stderr
    assert "3 ranks: 0-1, 3 all_reduce" in done.stderr


@pytest.mark.slow
@pytest.mark.heavy
def test_a_collective_operation_of_two_nodes_that_hangs(run_nodes):
    shown = run_nodes("--hang-timeout=10s", "--on-hang=stop", script=GLOO)
    for text in shown:
        assert "1 rank: 2 load_batch (train.py:7)\n" in text, shown
        assert "3 ranks: 0-1, 3 all_reduce" in text, shown
