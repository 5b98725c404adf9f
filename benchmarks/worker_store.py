"""The time until workers meet in their store: plaunch and torchrun in turn.

    python benchmarks/worker_store.py [--repeat N] [--json FILE] [--check]

Every launcher once, then every launcher again; medians of N rounds are shown.
benchmarks/README.md says how to read the table.
"""

from __future__ import annotations

import os
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
ROW, OLD_ROW, MEMORY = (
    "launch to all-reduce",
    "the same, --worker-store=rank0",
    "memory of the store host",
)


def time_to_all_reduce(launcher: str, words: Sequence[str], script: str) -> tuple[float, float]:
    """Return the milliseconds until all workers have met, and the store host's MB then.

    0 MB without a store host.
    """
    # torch resolves the addresses of its peers, which takes seconds without a name server.
    env = {"RES_OPTIONS": "timeout:1 attempts:1", "OMP_NUM_THREADS": "1"}
    with measuring.Pipes() as pipes:
        begin = time.perf_counter()
        process = start(
            command(launcher, f"--nproc-per-node={WORKERS}", *words, script),
            env={**env, **pipes.env},
        )
        heard = pipes.hear(f"all-reduce of {launcher}'s workers")
        for _ in range(WORKERS):
            next(heard)
        elapsed = (time.perf_counter() - begin) * 1e3
        memory = host_memory(process.pid)
        finish(process)
    return elapsed, memory


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


def main() -> int:
    args = measuring.parser(__doc__.partition("\n")[0], repeat=7).parse_args()
    row, old, memory = (
        Measurement(ROW, "ms"),
        Measurement(OLD_ROW, "ms"),
        Measurement(MEMORY, "MB"),
    )
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
            if number < 0:
                for measurement in (row, old, memory):
                    measurement.samples.clear()  # the first round only warms caches
    measurements = [one for one in (row, old, memory) if one.samples]
    measuring.print_platform(args.repeat)
    measuring.print_table(measurements)
    return measuring.report(list(goals(measurements)), measurements, args)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"worker_store.py: {error}")
