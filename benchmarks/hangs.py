"""The cost of `--hang-timeout` for a launcher, and its false alarms.

    python benchmarks/hangs.py                          # the cost: two minutes
    python benchmarks/hangs.py --false-alarms --runs=50 # a training that never hangs: eight minutes
    python benchmarks/hangs.py --false-alarms --torch   # the same with torch: fifteen minutes

The cost is that of the launcher and its processes other than workers, without and with a
time-out of ten minutes, in percent of a core for each worker. With `--torch`, workers import torch.

The training has two workers. It computes, loads data and writes a checkpoint, each for longer than
the time-out and in one call of a function. It waits as long for a program that writes files, and
for a thread that does, and then sleeps with heartbeats. Alarms are counted.

With `--torch`, it is one of DDP over gloo, and sends no heartbeats. A batch of its `DataLoader`
takes longer than the time-out, in one wait of the worker. A thread prefetches with a program, for
which the worker waits in a queue. Then it trains with loader processes, rank 0 evaluates while
rank 1 waits in a barrier, and rank 0 writes a checkpoint with `torch.save`, each for longer than
the time-out. A report that rank 1 waits while others progress is no false alarm.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from measuring import BenchmarkError, Pipes, command, positive, start, write_script

GOAL = 0.2  # percent of a core for each worker
TIMEOUT = 2.0  # seconds, of the training
STAY = """\
import os, sys, time
if "torch" in sys.argv:
    import torch
def train_step():
    while True: time.sleep(600)
def train():
    train_step()
with open(os.environ["BENCHMARK_SAID"], "wb", buffering=0) as said:
    said.write(b"up\\n")
train()
"""
TRAINING = """\
import json, os, pickle, random, subprocess, tempfile, threading, time, zlib
from plaunch.worker import heartbeat
LONG = 1.5 * float(os.environ["BENCHMARK_TIMEOUT"])

def compute(end):
    weights = [random.random() for _ in range(1000)]
    while time.monotonic() < end:
        weights = [0.9 * weight + random.random() for weight in weights]

def load(path, end):
    while time.monotonic() < end:
        with open(path) as file:
            batch = [json.loads(line) for line in file]

def save(path, end):
    while time.monotonic() < end:
        with open(path, "wb") as file:
            for part in range(100):
                file.write(zlib.compress(pickle.dumps({"part": part, "weights": [part] * 1000})))

def run_program(path, seconds):
    write = f"dd if=/dev/zero of={path} bs=64k count=9 2>/dev/null; sleep 0.2"
    script = f"for n in $(seq {int(5 * seconds)}); do {write}; done"
    subprocess.run(["sh", "-c", script], timeout=600)

def save_in_thread(path, end):
    done = threading.Event()
    def work():
        while time.monotonic() < end:
            with open(path, "w") as file:
                file.write("x" * 9999)
            time.sleep(0.05)
        done.set()
    threading.Thread(target=work).start()
    while not done.wait(1):
        pass

with tempfile.TemporaryDirectory() as folder:
    data = os.path.join(folder, "data")
    with open(data, "w") as file:
        for number in range(5000):
            file.write(json.dumps({"number": number, "text": "x" * 50}) + "\\n")
    compute(time.monotonic() + LONG)
    load(data, time.monotonic() + LONG)
    save(os.path.join(folder, "saved"), time.monotonic() + LONG)
    run_program(os.path.join(folder, "written"), LONG)
    save_in_thread(os.path.join(folder, "saved"), time.monotonic() + LONG)
end = time.monotonic() + LONG
while time.monotonic() < end:
    heartbeat()
    time.sleep(LONG / 20)
"""
TORCH_TRAINING = """\
import os, queue, subprocess, threading, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
LONG = 1.5 * float(os.environ["BENCHMARK_TIMEOUT"])

class Samples:
    def __init__(self, seconds):
        self.seconds = seconds
    def __len__(self):
        return 16
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.randn(64)

def load():
    list(DataLoader(Samples(LONG / 16), num_workers=1, batch_size=16))

def prefetch():
    batches = queue.Queue()
    def work():
        script = f"for n in $(seq {int(5 * LONG)}); do echo $n; sleep 0.2; done"
        batches.put(subprocess.run(["sh", "-c", script], timeout=600, capture_output=True).stdout)
    threading.Thread(target=work).start()
    batches.get(timeout=600)

def train(model, epochs):
    for epoch in range(epochs):
        for batch in DataLoader(Samples(0.01), num_workers=2, batch_size=4):
            model(batch).square().mean().backward()

def evaluate(model, end):
    with torch.no_grad():
        while time.monotonic() < end:
            sum(model(batch).sum() for batch in DataLoader(Samples(0.05), num_workers=1))

class Slow:
    def write(self, data):
        time.sleep(LONG / 50)
        return len(data)
    def flush(self):
        pass

def save(model, end):
    while time.monotonic() < end:
        torch.save({f"{n}": torch.randn(1000) for n in range(50)}, Slow())

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
load()
prefetch()
train(model, 4)
for step in (evaluate, save):
    if dist.get_rank() == 0:
        step(model.module, time.monotonic() + LONG)
    dist.barrier()
dist.destroy_process_group()
"""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of its ended children, in seconds."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def cost(folder: str, words: list[str], workers: int, seconds: float, *args: str) -> float:
    """Return the CPU use of a launcher with sleeping workers, in percent of a core per worker."""
    script = write_script(folder, "stay.py", STAY)
    with Pipes() as pipes:
        argv = command("plaunch", *words, f"--nproc-per-node={workers}", script, *args)
        launcher = start(argv, env=pipes.env)
        try:
            for number, _ in enumerate(pipes.hear("the workers"), 1):
                if number == workers:
                    break
            time.sleep(1)  # exclude the rest of the start
            before, begin = cpu_seconds(launcher.pid), time.monotonic()
            time.sleep(seconds)
            used, passed = cpu_seconds(launcher.pid) - before, time.monotonic() - begin
        finally:
            launcher.send_signal(signal.SIGTERM)
            launcher.wait()
    return used / passed / workers * 100


def train(script: str, number: int) -> str:
    """Run the training once; return the hang report, or an empty text."""
    words = ["--nproc-per-node=2", f"--hang-timeout={TIMEOUT:g}s", "--on-hang=stop", script]
    environ = {**os.environ, "BENCHMARK_TIMEOUT": f"{TIMEOUT}", "LOGLEVEL": "INFO"}
    done = subprocess.run(
        command("plaunch", *words), env=environ, capture_output=True, text=True, check=False
    )
    is_alarm = "no worker of the job has moved for" in done.stderr
    print(f"run {number}: {'a false alarm' if is_alarm else 'no alarm'}", flush=True)
    if done.returncode != 0 and not is_alarm:
        raise BenchmarkError(done.stderr)
    return done.stderr if is_alarm else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--false-alarms", action="store_true", help="run the training")
    parser.add_argument("--runs", type=positive, default=50, help="of the training (default: 50)")
    parser.add_argument("--at-once", type=positive, default=2, help="runs (default: 2)")
    parser.add_argument("--workers", type=positive, default=8, help="that sleep (default: 8)")
    parser.add_argument("--seconds", type=positive, default=60, help="to measure (default: 60)")
    parser.add_argument("--torch", action="store_true", help="workers import torch")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.false_alarms:
            text = TORCH_TRAINING if args.torch else TRAINING
            script = write_script(folder, "train.py", text)
            with ThreadPoolExecutor(args.at_once) as pool:
                reports = list(pool.map(partial(train, script), range(1, args.runs + 1)))
            alarms = [text for text in reports if text]
            print(*alarms, sep="")
            print(f"{len(alarms)} of {args.runs} runs with a false alarm")
            return int(args.check and bool(alarms))
        words = ["torch"] if args.torch else []
        without = cost(folder, [], args.workers, args.seconds, *words)
        watched = cost(folder, ["--hang-timeout=10m"], args.workers, args.seconds, *words)
    print(f"{args.workers} workers, for {args.seconds} s, in percent of a core for each of them")
    print(f"without --hang-timeout     {without:.3f} %")
    print(f"with --hang-timeout=10m    {watched:.3f} %  (goal: {GOAL:g} %)")
    return int(args.check and watched > GOAL)


if __name__ == "__main__":
    sys.exit(main())
