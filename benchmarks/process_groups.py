"""Whether a job can create and destroy its process group repeatedly: plaunch and torchrun.

    python benchmarks/process_groups.py [--repeat=3] [--groups=6] [--workers=2] [--only=WORD]

Each worker calls `init_process_group("gloo")`, `all_reduce` and `destroy_process_group` several
times. Without a launcher, this program starts the workers, and a process of torch's hosts their
store, as the agent of a launcher does.

torch gives each of these groups the same name, and leaves its keys in the store. So a worker may
read the addresses of the former group, and connect to ports that are closed. With
a prefix for each group this cannot happen. For each way, the table shows how many jobs
succeeded, failed, or exceeded the time limit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from measuring import ENVIRON, add_only, choose, command, free_endpoint, positive, write_script

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROW = "{:32} {:22} {:>5} {:>7} {:>5}"
WORKER = """\
import os, sys, time
open(f"{os.path.dirname(__file__)}/{os.getpid()}.pid", "w").close()
import torch, torch.distributed as dist
count, way = int(sys.argv[1]), sys.argv[2]
if way == "prefix":
    store, rank, size = next(dist.rendezvous("env://"))
for number in range(count):
    if way == "late" and os.environ["RANK"] == "0" and number:
        time.sleep(1)
    if way == "prefix":
        own = dist.PrefixStore(f"group {number}", store)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=size)
    else:
        dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()
    dist.destroy_process_group()
"""
STORE = """\
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("ready", flush=True)
sys.stdin.read()
"""
WAYS = {
    "plain": "as torch names them",
    "late": "the same, rank 0 late",
    "prefix": "a prefix for each",
}
NO_LAUNCHER = "no launcher"


class Start(NamedTuple):
    """How the workers of a job are started; `words` are options of the launcher."""

    launcher: str
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.launcher, *self.words))


STARTS = (
    Start(NO_LAUNCHER),
    Start("torchrun", ("--standalone",)),
    Start("plaunch"),
    Start("plaunch", ("--preload=torch",)),
    Start("plaunch", ("--worker-store=rank0",)),
)


def run(start: Start, args: argparse.Namespace, way: str) -> str:
    """Run one job; return whether it succeeded, failed or hung."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        script = write_script(folder, "worker.py", WORKER)
        stack.callback(_end_workers, folder)
        words = [script, str(args.groups), way]
        if start.launcher == NO_LAUNCHER:
            jobs = list(_start_workers(stack, folder, words, args.workers))
        else:
            options = (*start.words, f"--nproc-per-node={args.workers}")
            jobs = [_start(stack, command(start.launcher, *options, *words))]
        try:
            codes = [job.wait(args.limit) for job in jobs]
        except subprocess.TimeoutExpired:
            return "hung"
        return "failed" if any(codes) else "done"


def _start_workers(
    stack: contextlib.ExitStack, folder: str, words: list[str], count: int
) -> Iterator[subprocess.Popen[bytes]]:
    host, _, port = free_endpoint().rpartition(":")
    script = write_script(folder, "store.py", STORE)
    store = _start(stack, [sys.executable, script, port])
    if store.stdout is not None:
        store.stdout.readline()
    for rank in range(count):
        env = {
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "RANK": str(rank),
            "WORLD_SIZE": str(count),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        yield _start(stack, [sys.executable, *words], env)


def _start(
    stack: contextlib.ExitStack, argv: list[str], env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        argv,
        env={**ENVIRON, "OMP_NUM_THREADS": "1", **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if "store.py" in argv[1] else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher with its workers, or a process; a launcher gets some seconds."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _end_workers(folder: str) -> None:
    """Kill workers that have outlived their launcher."""
    for path in Path(folder).glob("*.pid"):
        with contextlib.suppress(OSError):
            if folder.encode() in Path(f"/proc/{path.stem}/cmdline").read_bytes():
                os.kill(int(path.stem), signal.SIGKILL)


def main() -> int:
    """Run all jobs, and print a row for each way; return 1 if a job with prefixes failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=positive, default=3, help="jobs per row (default: 3)")
    parser.add_argument("--groups", type=positive, default=6, help="in each job (default: 6)")
    parser.add_argument("--workers", type=positive, default=2, help="in each job (default: 2)")
    parser.add_argument("--limit", type=positive, default=45, help="seconds (default: 45)")
    add_only(parser)
    args = parser.parse_args()
    pairs = [(start, way) for start in STARTS for way in WAYS]
    named = [((start, way), (f"{start} {WAYS[way]}",)) for start, way in pairs]
    is_wrong = False
    print(f"{args.workers} workers, {args.groups} groups, {args.limit} s, {os.cpu_count()} cores\n")
    print(_ROW.format("started by", "groups", "done", "failed", "hung"))
    for start, way in choose(parser, args.only, named):
        ends = [run(start, args, way) for _ in range(args.repeat)]
        counts = (ends.count(end) for end in ("done", "failed", "hung"))
        print(_ROW.format(str(start), WAYS[way], *counts), flush=True)
        is_wrong = is_wrong or (way == "prefix" and set(ends) != {"done"})
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
