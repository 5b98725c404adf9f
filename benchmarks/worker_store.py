"""The time until workers meet in their store: plaunch and torchrun in turn.

    python benchmarks/worker_store.py [--repeat N] [--json FILE] [--check]

Every launcher once, then every launcher again; medians of N rounds are shown.
benchmarks/README.md says how to read the table.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import measuring
from measuring import BenchmarkError, Goal, Measurement, command, finish, start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WORKERS = 2
# The beginning of a training script. The end is not measured, so there is no cleanup.
REDUCING = """\
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
said = os.open(os.environ["BENCHMARK_SAID"], os.O_WRONLY)
os.write(said, b"reduced\\n")
dist.barrier()
os._exit(0)
"""
# The same on two nodes whose workers are forked with torch, in the first round and after a restart.
PRELOADED = """\
import os, time
import torch, torch.distributed as dist
began = time.perf_counter()
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
seconds = time.perf_counter() - began
said = os.open(os.environ["BENCHMARK_SAID"], os.O_WRONLY)
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
os.write(said, f"{attempt} {seconds}\\n".encode())
dist.barrier()
os._exit(0 if attempt == "1" else int(os.environ["RANK"] == "0"))
"""
NODES = 2
IMPORT = "import time, sys; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"
ROW, OLD_ROW, MEMORY, FORKED_ROW, IMPORT_ROW = (
    "launch to all-reduce",
    "the same, --worker-store=rank0",
    "memory of the store host",
    "two nodes, --preload=torch: init to all-reduce",
    "an import of torch",
)
# torch resolves the addresses of its peers, which takes seconds without a name server.
ENV = {"RES_OPTIONS": "timeout:1 attempts:1", "OMP_NUM_THREADS": "1"}


def time_to_all_reduce(launcher: str, words: Sequence[str], script: str) -> tuple[float, float]:
    """Return the milliseconds until all workers have met, and the store host's MB then.

    0 MB without a store host.
    """
    with measuring.Pipes() as pipes:
        begin = time.perf_counter()
        process = start(
            command(launcher, f"--nproc-per-node={WORKERS}", *words, script),
            env={**ENV, **pipes.env},
        )
        heard = pipes.hear(f"all-reduce of {launcher}'s workers")
        for _ in range(WORKERS):
            next(heard)
        elapsed = (time.perf_counter() - begin) * 1e3
        memory = host_memory(process.pid)
        finish(process)
    return elapsed, memory


def time_when_forked() -> list[float]:
    """Return the longest milliseconds of a worker from its start to an all-reduce, by round."""
    with measuring.Pipes() as pipes:
        script = measuring.write_script(pipes.folder, "preloaded.py", PRELOADED)
        argv = command(
            "plaunch",
            f"--nnodes={NODES}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={measuring.free_endpoint()}",
            f"--rdzv-id=forked-{os.urandom(6).hex()}",
            "--local-addr=127.0.0.1",
            "--max-restarts=1",
            "--preload=torch",
            script,
        )
        agents = [start(argv, env={**ENV, **pipes.env}) for _ in range(NODES)]
        heard = pipes.hear("the all-reduce of forked workers")
        taken = {"0": 0.0, "1": 0.0}
        for _ in range(NODES * len(taken)):
            attempt, seconds = next(heard).split()
            taken[attempt] = max(taken[attempt], float(seconds) * 1e3)
        for agent in agents:
            finish(agent)
    return list(taken.values())


def time_to_import() -> float:
    """Return the milliseconds of an import of torch in a fresh interpreter."""
    shown = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, check=True)
    return float(shown.stdout) * 1e3


def host_memory(launcher: int) -> float:
    """Return the memory of a launcher's store host in MB; 0 without one."""
    try:
        with open(f"/proc/{launcher}/task/{launcher}/children", encoding="ascii") as file:
            children = file.read().split()
        for pid in children:
            with open(f"/proc/{pid}/cmdline", "rb") as title:
                is_host = b"worker_store/serving.py" in title.read()
            if is_host:
                with open(f"/proc/{pid}/statm", "rb") as statm:
                    return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        pass  # it has already ended with its workers
    return 0.0


def goals(measurements: Sequence[Measurement]) -> Iterator[Goal]:
    row = measurements[0]
    if "torchrun" in row.samples:
        text = "first all-reduce: no later than under torchrun"
        yield Goal(text, row.ratio("plaunch", "torchrun"), 1)
    forked, imported = (
        next(one for one in measurements if one.name == name) for name in (FORKED_ROW, IMPORT_ROW)
    )
    text = "first all-reduce of forked workers: at most 1/4 of an import of torch"
    yield Goal(text, forked.median("plaunch") / imported.median("plaunch"), 1 / 4)


def main() -> int:
    args = measuring.parser(__doc__.partition("\n")[0], repeat=7).parse_args()
    row, old, memory = (
        Measurement(ROW, "ms"),
        Measurement(OLD_ROW, "ms"),
        Measurement(MEMORY, "MB"),
    )
    forked, imported = Measurement(FORKED_ROW, "ms"), Measurement(IMPORT_ROW, "ms")
    with measuring.Pipes() as folder:
        script = measuring.write_script(folder.folder, "reducing.py", REDUCING)
        for number in range(-1, args.repeat):
            taken, hosts = time_to_all_reduce("plaunch", (), script)
            row.add("plaunch", taken)
            if hosts:
                memory.add("plaunch", hosts)
            if not args.no_torchrun:
                row.add("torchrun", time_to_all_reduce("torchrun", ("--standalone",), script)[0])
            taken, _ = time_to_all_reduce("plaunch", ("--worker-store=rank0",), script)
            old.add("plaunch", taken)
            for milliseconds in time_when_forked():
                forked.add("plaunch", milliseconds)
            imported.add("plaunch", time_to_import())
            if number < 0:
                for measurement in (row, old, memory, forked, imported):
                    measurement.samples.clear()  # the first round only warms caches
    measurements = [one for one in (row, old, memory, forked, imported) if one.samples]
    measuring.print_platform(args.repeat)
    measuring.print_table(measurements)
    return measuring.report(list(goals(measurements)), measurements, args)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"worker_store.py: {error}")
