"""The reported causes of hangs, with real torch."""

from __future__ import annotations

import os
import re
import signal
import subprocess

import pytest
from plaunch.process.proc import read_state

from helpers.stacks import readable_stacks  # noqa: F401 - a fixture
from helpers.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("readable_stacks"), pytest.mark.slow]

HOST = os.uname().nodename

DATA = """\
import time
import torch

def read_shard(index):
    time.sleep(10_000)

class Shards:
    def __init__(self, stuck_at=-1):
        self.stuck_at = stuck_at

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == self.stuck_at:
            read_shard(index)
        return torch.ones(4)
"""
LOADS = """\
from torch.utils.data import DataLoader
from data import Shards

def train():
    for batch in DataLoader(Shards(stuck_at=5), num_workers=2):
        batch.sum()

if __name__ == "__main__":  # loader processes may import the script
    train()
"""
DDP = """\
import os
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from data import Shards

def train():
    shards = Shards(stuck_at=9 if dist.get_rank() == 1 else -1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    for batch in DataLoader(shards, num_workers=2, batch_size=2):
        model(batch).sum().backward()

if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
"""
POOL = """\
import multiprocessing, time

def resize(image):
    time.sleep(10_000 if image == 3 else 0)

def prepare():
    with multiprocessing.Pool(2) as pool:
        for _ in pool.imap(resize, range(8)):
            pass

if __name__ == "__main__":
    prepare()
"""
PROGRAM = """\
import subprocess, sys

def prepare():
    subprocess.run([sys.executable, "convert.py"], timeout=600)

prepare()
"""
CONVERT = """\
import time

def convert():
    time.sleep(10_000)

convert()
"""

STOP = "--on-hang=stop"


@pytest.fixture(autouse=True)
def _loud(loud):
    """Show the log lines of launches."""


@pytest.fixture
def hang(plaunch):
    """Run a script that hangs; return the failure on the console, from its first line on."""

    def call(text, *words, timeout="8s"):
        plaunch.write("data.py", DATA)
        plaunch.write("convert.py", CONVERT)
        script = plaunch.write("train.py", text)
        done = plaunch.run(f"--hang-timeout={timeout}", STOP, *words, script)
        assert done.returncode == 116, done.stderr
        found = re.search(r"^plaunch: (rank \d+ on [\s\S]*)", done.stderr, re.MULTILINE)
        assert found, done.stderr
        return found[1].splitlines()

    return call


def test_a_data_loader_that_is_stuck(hang):
    headline = hang(LOADS)[0]
    assert headline.startswith(f"rank 0 on {HOST} failed after ")
    assert headline.endswith(
        "1 rank: 0 read_shard (data.py:5), a loader process of rank 0; "
        "rank 0 waits in train (train.py:5)"
    )


@pytest.mark.heavy
def test_a_data_loader_of_one_rank_that_is_stuck_is_named_and_not_its_victims(hang):
    lines = hang(DDP, "--nproc-per-node=2")
    assert lines[0].startswith(f"rank 1 on {HOST} failed after ")
    assert "1 rank: 1 read_shard (data.py:5), a loader process of rank 1; " in lines[0]
    assert lines[1] == "  where the others were:"
    assert re.match(r"    1 rank: 0 \S+ <- train \(train\.py:11\)$", lines[2])


def test_a_process_of_a_pool_that_is_stuck(hang):
    headline = hang(POOL, timeout="4s")[0]
    assert headline.endswith(
        "1 rank: 0 resize (train.py:4), a pool process of rank 0; "
        "rank 0 waits in prepare (train.py:8)"
    )


def test_a_program_that_is_stuck(hang):
    headline = hang(PROGRAM, timeout="4s")[0]
    assert headline.endswith(
        "1 rank: 0 convert (convert.py:4), a process that rank 0 started; "
        "rank 0 waits in prepare (train.py:4)"
    )


# A batch takes longer than the timeout, in one wait of the worker; its processes continue.
SLOW_LOADS = """\
import time
import torch
from torch.utils.data import DataLoader

class Slow:
    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(0.7)
        return torch.ones(4)

if __name__ == "__main__":
    list(DataLoader(Slow(), num_workers=1, batch_size=12))
"""


def test_a_data_loader_that_is_slow_does_not_hang(plaunch):
    script = plaunch.write("train.py", SLOW_LOADS)
    done = plaunch.run("--hang-timeout=4s", STOP, script)
    assert done.returncode == 0, done.stderr
    assert "moved" not in done.stderr


# Work on another thread than the main one, for more than twice the timeout.
OTHERS = {
    "a program": """\
import subprocess

def main():
    script = "for n in $(seq 50); do dd if=/dev/zero of=out bs=64k count=9 2>&1; sleep 0.2; done"
    subprocess.run(["sh", "-c", script], timeout=600, stdout=subprocess.DEVNULL)

main()
""",
    "a thread": """\
import threading, time

done = threading.Event()

def work():
    for name in "abc":
        end = time.monotonic() + 3.3
        while time.monotonic() < end:
            with open(name, "w") as file:
                file.write("x" * 9999)
            time.sleep(0.05)
    done.set()

def main():
    threading.Thread(target=work).start()
    while not done.wait(1):
        pass

main()
""",
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_worker_that_waits_for_work_does_not_hang(plaunch, what):
    script = plaunch.write("train.py", OTHERS[what])
    done = plaunch.run("--hang-timeout=4s", STOP, script)
    assert done.returncode == 0, done.stderr
    assert "moved" not in done.stderr


def test_an_idle_program_is_a_hang(hang):
    text = "import subprocess\n\ndef main():\n    subprocess.run(['sleep', '10000'], timeout=600)\n"
    assert "main (train.py:4)" in hang(f"{text}\nmain()\n", timeout="4s")[0]


def test_threads_that_wait_for_each_other_are_a_hang(hang):
    """With a monitor, which has a timeout and changing variables."""
    text = """\
import queue, threading, time

batches, gone = queue.Queue(), threading.Event()

def load():
    time.sleep(10_000)

def watch(gone):
    while not gone.wait(1):
        now = time.time()

def train():
    threading.Thread(target=load, daemon=True).start()
    threading.Thread(target=watch, args=(gone,), daemon=True).start()
    while True:
        try:
            return batches.get(timeout=2)
        except queue.Empty:
            pass

train()
"""
    assert re.search(r"1 rank: 0 .*train \(train\.py:1[67]\)", hang(text, timeout="4s")[0])


# --- a suspended worker ---------------------------------------------------------------------------

REDUCES = """\
import os, pathlib, signal, time
import torch
import torch.distributed as dist

def train_step(step):
    dist.all_reduce(torch.ones(4))
    if os.environ["RANK"] == "1" and step == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.05)

pathlib.Path(f"up.{os.environ['RANK']}").write_text(str(os.getpid()))
dist.init_process_group("gloo")
for step in range(20):
    train_step(step)
"""


@pytest.mark.heavy
def test_a_worker_that_is_suspended_is_named_and_nothing_follows(plaunch, ctl):
    script = plaunch.write("train.py", REDUCES)
    since = r"suspended since ([\d-]+ )?\d\d:\d\d:\d\d"
    words = ("--nproc-per-node=2", "--hang-timeout=4s", STOP, "--rdzv-id=job", script)
    with plaunch.start(*words) as process:
        said = ""
        while not re.search(r"1 rank: 0 ", said):
            said += process.stderr.readline()
        lines = said[said.index("rank 1 on") :].splitlines()
        assert re.match(rf"rank 1 on {HOST} is {since}; --hang-timeout is paused ", lines[0])
        assert lines[0].endswith("--on-hang=stop does not act:")
        assert re.search(rf"1 rank: 1 train_step \(train\.py:8\), {since}$", lines[1])
        assert "1 rank: 0 all_reduce <- train_step (train.py:6)" in lines[2]
        assert re.search(rf"rank 1 .*running, {since}$", ctl("status", "job").stdout, re.MULTILINE)
        stacks = ctl("stacks", "job").stdout.splitlines()
        assert re.fullmatch(rf"1 rank: 1 train_step \(train\.py:8\), {since}", stacks[0])
        os.kill(int((plaunch.folder / "up.1").read_text()), signal.SIGCONT)
        process.communicate(timeout=60)
    assert process.returncode == 0


SUSPENDED = """\
import os, pathlib, signal

def train_step():
    pathlib.Path("up").write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)

train_step()
"""


def test_a_worker_that_is_suspended_is_shown_without_a_time_out(plaunch, ctl):
    script = plaunch.write("train.py", SUSPENDED)
    since = r"suspended since ([\d-]+ )?\d\d:\d\d:\d\d"
    with plaunch.start("--rdzv-id=job", script) as process:
        pid = plaunch.folder / "up"
        wait_until(
            lambda: pid.exists() and read_state(int(pid.read_text() or 1)) == "T", "its suspension"
        )
        status = ctl("status", "job").stdout
        assert re.search(rf"rank 0 .*running, {since}$", status, re.MULTILINE), status
        stacks = ctl("stacks", "job").stdout
        assert re.match(rf"1 rank: 0 train_step \(train\.py:5\), {since}\n", stacks), stacks
        os.kill(int(pid.read_text()), signal.SIGCONT)
        process.communicate(timeout=60)
    assert process.returncode == 0


# --- a debugger session ---------------------------------------------------------------------------

DEBUGGED = """\
import os, select, time

def barrier():
    select.select([done], [], [])

def train_step():
    if os.environ["RANK"] == "1":
        breakpoint()
        os.write(wakes, b"x")

done, wakes = os.open("done", os.O_RDONLY | os.O_NONBLOCK), os.open("done", os.O_RDWR)
train_step()
barrier()
"""


def test_a_debugger_session_is_not_ended(plaunch):
    script = plaunch.write("train.py", DEBUGGED)
    os.mkfifo(plaunch.folder / "done")
    words = ("--nproc-per-node=2", "--hang-timeout=3s", STOP, script)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with plaunch.popen(*words, text=True, **pipes) as process:
        said = ""
        while "1 rank: 0 " not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.stdin.write("continue\n")
        process.stdin.flush()
        process.communicate(timeout=60)
    prompt = r"at a prompt of pdb since ([\d-]+ )?\d\d:\d\d:\d\d"
    assert re.search(rf"rank 1 on {HOST} is {prompt}; .*--on-hang=stop does not act:\n", said)
    # The debugger stops at the next line, but since Python 3.13 at the breakpoint itself.
    assert re.search(rf"1 rank: 1 train_step \(train\.py:[89]\), {prompt}\n", said)
    assert re.search(r"1 rank: 0 barrier \(train\.py:4\)\n", said)
    assert process.returncode == 0


# --- a rank that has ended early ------------------------------------------------------------------

ENDS_EARLY = """\
import os, sys, time
import torch
import torch.distributed as dist

def train_step():
    if "waits" in sys.argv:
        dist.distributed_c10d._get_default_store().wait(["never"])
    dist.all_reduce(torch.ones(4))

def train():
    for step in range(20):
        if dist.get_rank() == 1 and step == 0:
            os._exit(0)  # its data are over
        if dist.get_rank() == 0:
            time.sleep(1)
        train_step()

dist.init_process_group("gloo")
train()
"""
EARLY = r"rank 1 had ended with exit code 0, [\d.]+ s before"


@pytest.mark.heavy
def test_a_failure_after_a_rank_has_ended_early_names_it(plaunch):
    script = plaunch.write("train.py", ENDS_EARLY)
    done = plaunch.run("--nproc-per-node=2", script)
    assert done.returncode == 1, done.stderr
    found = re.search(rf"rank 0 on {HOST} failed after .*\n  {EARLY}\n", done.stderr)
    assert found, done.stderr


@pytest.mark.heavy
def test_a_hang_after_a_rank_has_ended_early_names_it(plaunch):
    script = plaunch.write("train.py", ENDS_EARLY)
    done = plaunch.run("--nproc-per-node=2", "--hang-timeout=4s", STOP, script, "waits")
    assert done.returncode == 116, done.stderr
    headline, _, *others = done.stderr[done.stderr.index("rank 0 on ") :].splitlines()
    assert headline.endswith("1 rank: 0 train_step (train.py:7)")
    assert re.fullmatch(rf"    {EARLY}", others[0]), done.stderr
